#include "host/local_cluster.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/assert.h"
#include "base/choice.h"
#include "base/errors.h"
#include "gpu/devices.h"
#include "host/conductor_flags.h"
#include "host/daemon_flags.h"
#include "host/disk_flags.h"
#include "host/signals.h"
#include "host/transfer_flags.h"
#include "mem/mem.h"
#include "product/doors.h"
#include "product/flags.h"

namespace mc::host {
namespace {

constexpr Duration kCheckTime = std::chrono::minutes(10);  // a large model is read

/// The flag has been checked.
bool has_several_devices(const cli::Args& args) {
  const auto devices = gpu::parse_devices(args.text(flags::kDevice));
  return devices && devices->size() > 1;
}

}  // namespace

Result<LocalShape> parse_local(std::string_view text) {
  LocalShape shape;
  size_t i = 0;
  while (i < text.size()) {
    int count = 0;
    const size_t digits = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9' && i - digits < 3)
      count = count * 10 + (text[i++] - '0');
    int* slot = i < text.size() && i > digits ? (text[i] == 'p'   ? &shape.prefill
                                                 : text[i] == 'd' ? &shape.decode
                                                 : text[i] == 'c' ? &shape.cache
                                                                  : nullptr)
                                              : nullptr;
    if (!slot || *slot != 0 || count > 64)
      return user_error(err::kBadValue, "--local " + std::string(text) + " is not of the form 2p2d1c", "--local",
                        "give counts from 0 to 64 of p (prefill), d (decode) and c (cache), each letter once");
    *slot = count;
    ++i;
  }
  if (shape.prefill < 1 || shape.decode < 1)
    return user_error(err::kBadValue, "--local " + std::string(text) + " needs at least 1p and 1d", "--local");
  return shape;
}

Result<LocalCluster> LocalCluster::open(const cli::Args& args) {
  MC_TRY(shape, parse_local(args.text(flags::kLocal)));
  return LocalCluster(args, shape);
}

std::vector<LocalCluster::Command> LocalCluster::commands(const std::string& control, RunBy run_by) const {
  MC_ASSERT(!control.empty());
  std::vector<Command> out;
  const int workers = std::max(1, shape_.prefill + shape_.decode + shape_.cache);
  const uint64_t share = mem::available_bytes() / 4 / static_cast<uint64_t>(workers);
  const auto add = [&](const char* program, char letter, int count, bool is_cache) {
    for (int i = 0; i < count; ++i) {
      Command c{std::string(1, letter) + std::to_string(i), {program}};
      const auto put = [&](std::initializer_list<std::string> words) { c.words.insert(c.words.end(), words); };
      put({"--name", c.name, "--conductor", control});
      put({"--transport", args_.text(flags::kTransport), "--log-level", args_.text(flags::kLogLevel)});
      put({"--log-format", args_.text(flags::kLogFormat)});
      if (args_.given(flags::kDrainTimeout)) put({"--drain-timeout", args_.text(flags::kDrainTimeout)});
      if (run_by == RunBy::conductor) put({"--die-with-parent"});
      // A folder takes one node. The flag of the environment names one folder, and all workers inherit it.
      const char* ssd = std::getenv(env_name(flags::kSsd.name).c_str());
      if (const auto place = parse_ssd(ssd ? ssd : ""); place)
        put({"--ssd", place->directory + "/" + c.name + ":" + std::to_string(place->bytes)});
      if (std::getenv(env_name(flags::kPorts.name).c_str())) put({"--ports", "any"});  // all workers inherit it
      if (args_.given(flags::kLeaseBy)) put({"--lease-by", args_.text(flags::kLeaseBy)});
      if (args_.present(flags::kAuth)) put({"--auth", args_.text(flags::kAuth)});
      if (args_.present(flags::kAdminKeyFile)) put({"--admin-key-file", args_.text(flags::kAdminKeyFile)});
      if (args_.present(flags::kInsecure)) put({"--insecure", args_.text(flags::kInsecure)});
      if (is_cache) {
        put({"--dram", std::to_string(std::min<uint64_t>(share, uint64_t{1} << 30))});
      } else {
        if (!args_.text(flags::kModel).empty()) put({"--model", args_.text(flags::kModel)});
        put({"--block-tokens", args_.text(flags::kBlockTokens)});
        if (!is_word(args_, flags::kRunner)) {
          put({"--runner", args_.text(flags::kRunner)});
          if (letter == 'p' && args_.given(flags::kChunkTokens))
            put({"--chunk-tokens", args_.text(flags::kChunkTokens)});
          out.push_back(std::move(c));
          continue;
        }
        put({"--attention", args_.text(flags::kAttention)});
        put({"--dtype", args_.text(flags::kDtype), "--weight-dtype", args_.text(flags::kWeightDtype)});
        put({"--kv-dtype", args_.text(flags::kKvDtype)});
        put({"--threads", args_.text(flags::kThreads)});
        put({"--device", args_.text(flags::kDevice), "--kernels", args_.text(flags::kKernels)});
        const int share = std::max(1, 80 / (shape_.prefill + shape_.decode));
        put({"--kv-mem", args_.given(flags::kKvMem) ? args_.text(flags::kKvMem) : std::to_string(share) + "%"});
        // Nodes may share a GPU. Nodes on several GPUs have no tier there.
        put({"--device-mem", has_several_devices(args_) ? "0" : std::to_string(share) + "%"});
        if (letter == 'p') put({"--chunk-tokens", args_.text(flags::kChunkTokens)});
      }
      out.push_back(std::move(c));
    }
  };
  add("mc-prefill", 'p', shape_.prefill, false);
  add("mc-decode", 'd', shape_.decode, false);
  add("mc-cache", 'c', shape_.cache, true);
  MC_ASSERT_EQ(out.size(), shape_.nodes());
  return out;
}

namespace {

/// A word that a POSIX shell reads as it is, in quotes where it would read another.
std::string for_shell(const std::string& word) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string LocalCluster::command_lines(const std::string& control) const {
  std::string out;
  for (const auto& command : commands(control, RunBy::operator_)) {
    std::string line;
    for (const auto& word : command.words) line += (line.empty() ? "" : " ") + for_shell(word);
    out += line + "\n";
  }
  return out;
}

Result<void> LocalCluster::check(const std::string& control) const {
  Signals::let_through();  // no loop reads signals yet: ^C ends this process, and the child with it
  std::string last;
  for (Command command : commands(control, RunBy::conductor)) {
    if (command.words[0] == last) continue;
    last = command.words[0];
    command.words.insert(command.words.end(), {"--check", "--http", "127.0.0.1:0"});
    Children checked;
    MC_CHECK(checked.start(command.name, std::move(command.words)));
    const auto ended = checked.wait(SystemClock::instance().now() + kCheckTime);
    if (!ended)
      return user_error(err::kChildFailed,
                        last + " --check has not ended within " + std::to_string(kCheckTime / 1s) + " s", "--local");
    if (ended->status != 0)
      return user_error(err::kChildFailed, last + " --check " + ended->text(), "--local",
                        "its own error is above; --print-commands shows how " + last + " would be started");
  }
  return {};
}

Result<void> LocalCluster::start(const std::string& control) {
  for (const auto& command : commands(control, RunBy::conductor))
    MC_CHECK(children_->start(command.name, command.words));
  return {};
}

}  // namespace mc::host
