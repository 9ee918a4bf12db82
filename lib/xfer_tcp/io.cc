// The table of tcp's I/O methods, and the method that every machine has.
#include "xfer_tcp/io.h"

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "xfer/tally.h"

namespace mc::xfer {
namespace {

constexpr std::array kTcpIos = {&kTcpIoEpoll, &kTcpIoUring};

}  // namespace

const TcpIoEntry kTcpIoEpoll = {
    .name = "epoll",
    .summary = "a system call for each transfer",
    .open = [](Tally&, std::string&) -> std::unique_ptr<StreamIo> { return std::make_unique<SocketCalls>(); },
};

std::span<const TcpIoEntry* const> tcp_ios() {
  return kTcpIos;
}

bool known_tcp_io(std::string_view name) {
  return name == "auto" ||
         std::any_of(kTcpIos.begin(), kTcpIos.end(), [&](const auto* entry) { return name == entry->name; });
}

std::vector<TcpIoReport> tcp_io_report() {
  Tally nobody;
  std::vector<TcpIoReport> out;
  for (const TcpIoEntry* entry : kTcpIos) {
    std::string why;
    const auto io = entry->open(nobody, why);
    out.push_back({entry->name, io ? "" : why});
  }
  return out;
}

TcpIoChoice choose_tcp_io(std::string_view name, Tally& tally) {
  MC_ASSERT(known_tcp_io(name));
  const TcpIoEntry& plain = *kTcpIos.front();
  std::string why;
  for (const TcpIoEntry* entry : kTcpIos) {
    if (name != entry->name) continue;
    if (auto io = entry->open(tally, why)) return {std::move(io), entry->name};
    return {plain.open(tally, why), std::string(plain.name) + ", for " + entry->name + " is unusable: " + why};
  }
  return {plain.open(tally, why), plain.name};
}

}  // namespace mc::xfer
