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

/// The error of a stream that cannot be read.
Error kv_file_error(Error error) {
  const bool is_newer = error.code == Code::unsupported;
  return as_user_error(is_newer ? err::kKvFileVersion : err::kKvFileCorrupt, std::move(error));
}

}  // namespace

Result<int> inspect_stream(const cli::Args& args) {
  const std::string path = args.positional_one("FILE");
  MC_TRY(fd, open_input(path));
  auto read = kv::inspect(reader_of(fd));
  if (!read) return kv_file_error(within(path, std::move(read).error()));
  const kv::Inspection inspection = std::move(*read);
  const bool json = args.on(flags::kJson);
  MC_CHECK(write_all(1, json ? inspection.json().dump() + "\n" : inspection.text()));
  if (inspection.damage) return as_user_error(err::kKvFileCorrupt, within(path, *inspection.damage));
  return inspection.sound() ? 0 : 1;
}

Result<int> diff_streams(const cli::Args& args) {
  const std::string left_path = args.positional_one("LEFT"), right_path = args.positional_one("RIGHT");
  MC_TRY(left, open_input(left_path));
  MC_TRY(right, open_input(right_path));
  auto compared = kv::diff({left_path, reader_of(left)}, {right_path, reader_of(right)});
  if (!compared) return kv_file_error(std::move(compared).error());
  const auto& difference = *compared;
  const bool json = args.on(flags::kJson);
  MC_CHECK(write_all(1, json ? difference.json().dump() + "\n" : difference.text()));
  return difference.equal() ? 0 : 1;
}

}  // namespace mc::verbs
