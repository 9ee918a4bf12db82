#include "verbs/inspect.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/cli_flags.h"
#include "base/errors.h"
#include "base/fd.h"
#include "kv/inspect.h"

namespace mc::verbs {
namespace {

Result<Fd> open_input(const std::string& path) {
  Fd fd(path == "-" ? ::dup(0) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return as_user_error(err::kFileAccess, errno_error("open " + path));
  return fd;
}

wire::ReadBytes reader_of(const Fd& fd) {
  return [&fd](std::span<std::byte> bytes) { return read_all(fd.get(), bytes); };
}

}  // namespace

Result<int> inspect_stream(const cli::Args& args) {
  const std::string path = args.positional_one("FILE");
  MC_TRY(fd, open_input(path));
  auto read = kv::inspect(reader_of(fd));
  if (!read)
    return as_user_error(read.error().code == Code::unsupported ? err::kKvFileVersion : err::kKvFileCorrupt,
                         within(path, std::move(read).error()));
  const kv::Inspection inspection = std::move(*read);
  const bool json = args.on(flags::kJson);
  MC_CHECK(write_all(1, json ? inspection.json().dump() + "\n" : inspection.text()));
  if (inspection.damage) return as_user_error(err::kKvFileCorrupt, within(path, *inspection.damage));
  return inspection.sound() ? 0 : 1;
}

Result<int> diff_streams(const cli::Args& args) {
  MC_TRY(left, open_input(args.positional_one("LEFT")));
  MC_TRY(right, open_input(args.positional_one("RIGHT")));
  auto compared = kv::diff(reader_of(left), reader_of(right));
  if (!compared) return as_user_error(err::kKvFileCorrupt, std::move(compared.error()));
  const auto& difference = *compared;
  const bool json = args.on(flags::kJson);
  MC_CHECK(write_all(1, json ? difference.json().dump() + "\n" : difference.text()));
  return difference.equal() ? 0 : 1;
}

}  // namespace mc::verbs
