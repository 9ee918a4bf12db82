// mc-bench: measures the parts and the whole, makes test models, reads traces.

#include <algorithm>

#include "base/assert.h"
#include "base/cli.h"
#include "base/cli_flags.h"
#include "mc_version.h"
#include "print.h"
#include "verbs.h"

using namespace mc;

int main(int argc, char** argv) {
  const std::span<const bench::Verb> table = bench::verbs();
  std::vector<cli::Verb> verbs;
  for (const bench::Verb& verb : table) verbs.push_back(verb.said);
  const cli::Program program{.name = "mc-bench",
                             .summary = "measures the parts and the whole, makes test models, reads traces",
                             .flags = bench::kEveryVerbFlags,
                             .verbs = verbs,
                             .example = "mc-bench xfer --transport shm,tcp --size 64KiB-4MiB*8 -t 1s",
                             .needs_verb = true,
                             .version = MC_VERSION,
                             .commit = MC_COMMIT};
  return cli::run(program, argc, argv, [&](const cli::Args& args) -> Result<int> {
    const auto verb =
        std::find_if(table.begin(), table.end(), [&](const bench::Verb& v) { return v.said.name == args.verb(); });
    MC_ASSERT(verb != table.end());  // needs_verb
    // Before a long measurement, not after it. (mkmodel's is a directory that it makes.)
    if (args.has(flags::kOutput) && args.verb() != "mkmodel")
      MC_CHECK(bench::check_output(args.text(flags::kOutput), flags::kOutput));
    return verb->run(args);
  });
}
