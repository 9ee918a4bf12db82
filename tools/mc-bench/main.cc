// mc-bench: measures the parts and the whole, makes test models, reads traces.

#include "base/cli.h"
#include "base/cli_flags.h"
#include "mc_version.h"
#include "print.h"
#include "verbs.h"

using namespace mc;

namespace {

/// A long measurement must not end with an output file that cannot be written. (mkmodel's output is a directory that it
/// makes.)
Result<void> check_output_flag(const cli::Args& args) {
  if (!args.has(flags::kOutput) || args.verb() == "mkmodel") return {};
  return bench::check_output(args.text(flags::kOutput), flags::kOutput);
}

}  // namespace

int main(int argc, char** argv) {
  const cli::Program program{.name = "mc-bench",
                             .summary = "measures the parts and the whole, makes test models, reads traces",
                             .flags = bench::kEveryVerbFlags,
                             .verbs = bench::verbs(),
                             .example = "mc-bench xfer --transport shm,tcp --size 64KiB-4MiB*8 -t 1s",
                             .version = MC_VERSION,
                             .commit = MC_COMMIT,
                             .check = check_output_flag};
  return cli::run(program, argc, argv);
}
