// The table of tcp's ways to move bytes, and the one that every machine has.
#include "xfer/tcp_io.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/assert.h"
#include "xfer/tally.h"

namespace mc::xfer {
namespace {

constexpr std::array kTcpIos = {&kTcpIoEpoll, &kTcpIoUring};

class TcpCalls final : public TcpIo {
 public:
  ssize_t receive(int fd, std::span<const iovec> parts, int flags) override {
    msghdr message = message_of(parts);
    const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT | flags);
    return n < 0 ? -errno : n;
  }
  ssize_t send(int fd, std::span<const iovec> parts) override {
    const msghdr message = message_of(parts);
    const ssize_t n = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n < 0 ? -errno : n;
  }
};

}  // namespace

TcpIo& tcp_calls() {
  static TcpCalls calls;
  return calls;
}

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());  // the kernel only reads it
  message.msg_iovlen = parts.size();
  return message;
}

const TcpIoEntry kTcpIoEpoll = {
    .name = "epoll",
    .summary = "a system call a transfer",
    .open = [](Tally&, std::string&) -> std::unique_ptr<TcpIo> { return std::make_unique<TcpCalls>(); },
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
