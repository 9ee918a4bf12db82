#include "verbs/inspect.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "base/cli_flags.h"
#include "base/errors.h"
#include "base/fd.h"
#include "kv/inspect.h"

namespace mc::verbs {
namespace {

/// A stream, read from front to back.
struct Input {
  std::string path;
  Fd fd;
  uint64_t bytes_read = 0;

  static Result<Input> open(const std::string& path) {
    Fd fd(path == "-" ? ::dup(0) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return as_user_error(err::kFileAccess, errno_error("open " + path));
    return Input{path, std::move(fd)};
  }
  /// Fills `out`. Code::peer_lost at the end of the stream; bytes_read is then its length.
  Result<void> read(std::span<std::byte> out);
  wire::ReadBytes reader() {
    return [this](std::span<std::byte> out) { return read(out); };
  }
};

Result<void> Input::read(std::span<std::byte> out) {
  for (size_t done = 0; done < out.size();) {
    const ssize_t n = ::read(fd.get(), out.data() + done, out.size() - done);
    if (n == 0)
      return {Code::peer_lost,
              "end of input after " + std::to_string(done) + " of " + std::to_string(out.size()) + " bytes"};
    if (n > 0) {
      done += static_cast<size_t>(n);
      bytes_read += static_cast<uint64_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MC_CHECK(wait_fd(fd.get(), POLLIN, kNever));
    } else if (errno != EINTR) {
      return errno_error("read");
    }
  }
  return {};
}

/// The error of a stream that cannot be read.
Error kv_file_error(Error error) {
  const bool is_newer = error.code == Code::unsupported;
  return as_user_error(is_newer ? err::kKvFileVersion : err::kKvFileCorrupt, std::move(error));
}

/// The error of a stream that `mc-cache inspect` cannot read to its end. `what` says how much of it is there.
Error unreadable(const Input& input, Error error, const std::string& what) {
  const std::string again = "with mc-prefill once --kv-out or mc-cache export";
  if (error.code == Code::unsupported) return kv_file_error(within(input.path, std::move(error)));
  if (error.code != Code::peer_lost) {
    error = kv_file_error(within(input.path, std::move(error)));
    if (error.next.empty()) error.next = "copy the stream again, or write it again " + again;
    return error;
  }
  return user_error(err::kKvFileCorrupt,
                    input.path + ": the stream ends early, at byte " + std::to_string(input.bytes_read) + ": " + what,
                    error.what, "copy it whole, or write it again " + again + "; programs refuse a part of a stream");
}

}  // namespace

Result<int> inspect_stream(const cli::Args& args) {
  const std::string path = args.positional_one("FILE");
  MC_TRY(input, Input::open(path));
  auto read = kv::inspect(input.reader());
  if (!read) return unreadable(input, std::move(read).error(), "its prologue is not whole");
  const kv::Inspection inspection = std::move(*read);
  const bool json = args.on(flags::kJson);
  MC_CHECK(write_all(1, json ? inspection.json().dump() + "\n" : inspection.text()));
  if (inspection.damage)
    return unreadable(input, *inspection.damage,
                      std::to_string(inspection.whole_blocks()) + " of " +
                          std::to_string(inspection.prologue.block_count()) + " blocks are whole");
  return inspection.sound() ? 0 : 1;
}

Result<int> diff_streams(const cli::Args& args) {
  const std::string left_path = args.positional_one("LEFT"), right_path = args.positional_one("RIGHT");
  MC_TRY(left, Input::open(left_path));
  MC_TRY(right, Input::open(right_path));
  auto compared = kv::diff({left_path, left.reader()}, {right_path, right.reader()});
  if (!compared) return kv_file_error(std::move(compared).error());
  const auto& difference = *compared;
  const bool json = args.on(flags::kJson);
  MC_CHECK(write_all(1, json ? difference.json().dump() + "\n" : difference.text()));
  return difference.equal() ? 0 : 1;
}

}  // namespace mc::verbs
