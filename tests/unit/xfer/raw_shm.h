// A peer of the shm transport made by hand: messages with descriptors beside them, honest or not.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/un.h>

#include <array>
#include <initializer_list>
#include <string>

#include "raw_peer.h"

namespace mc::xfer::test {

struct RawShm {
  Fd fd;
  InstanceId self = instance(0x44);

  /// Dials "shm://name"; nothing is said yet.
  explicit RawShm(const std::string& uri) : fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    REQUIRE(uri.starts_with("shm://"));
    const std::string name = uri.substr(6);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(name.size() + 2 < sizeof address.sun_path);
    std::memcpy(address.sun_path + 1, name.data(), name.size());  // abstract
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
    REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
  }

  /// One message, with up to 8 descriptors.
  bool send(std::span<const std::byte> bytes, std::initializer_list<int> fds = {}) const {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
    if (fds.size() > 0) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(head), fds.begin(), fds.size() * sizeof(int));
    }
    return ::sendmsg(fd.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  bool send(const FrameHeader& header, std::span<const std::byte> payload = {},
            std::initializer_list<int> fds = {}) const {
    const auto head = wire::encode(header);
    std::vector<std::byte> both(head.begin(), head.end());
    both.insert(both.end(), payload.begin(), payload.end());
    return send(both, fds);
  }
  bool send(FrameType type, const std::vector<std::byte>& payload) const {
    FrameHeader header = frame(type);
    header.length = payload.size();
    return send(header, payload);
  }
  bool share(uint32_t buffer, uint64_t length, AccessClass access, std::initializer_list<int> fds) const {
    FrameHeader header = frame(FrameType::share, 0, buffer, 0, length);
    header.snapshot = static_cast<uint32_t>(access);
    return send(header, {}, fds);
  }
  /// The kind of the next message; nothing when the other side closed.
  std::optional<FrameType> receive() const {
    std::vector<std::byte> bytes(wire::kFrameHeaderBytes + wire::kFrameControlMax);
    if (!wait_fd(fd.get(), POLLIN, in(kLong))) return std::nullopt;
    const ssize_t n = ::recv(fd.get(), bytes.data(), bytes.size(), MSG_CMSG_CLOEXEC);
    if (n < static_cast<ssize_t>(wire::kFrameHeaderBytes)) return std::nullopt;
    FrameHeader header;
    const char* why = nullptr;
    REQUIRE(wire::decode(std::span(bytes).first<wire::kFrameHeaderBytes>(), header, why) == Code::ok);
    return header.kind();
  }
  bool closed() const {
    while (receive().has_value()) {
    }
    std::byte one;
    const ssize_t n = ::recv(fd.get(), &one, 1, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
  }
  /// Proves itself, where there is no secret.
  void join() const {
    wire::XferHello hello{.instance = self, .lane_count = 1, .name = "liar"};
    hello.connection.bytes.fill(5);
    REQUIRE(send(FrameType::hello, wire::encode(hello)));
    REQUIRE(receive() == FrameType::challenge);
    std::vector<std::byte> proof(32);
    const auto descriptor = wire::encode(raw_descriptor(self));
    proof.insert(proof.end(), descriptor.begin(), descriptor.end());
    REQUIRE(send(FrameType::proof, proof));
    REQUIRE(receive() == FrameType::ready);
  }
  /// The same, and says what it offers: nothing.
  void describe() const { REQUIRE(send(FrameType::describe, wire::encode(raw_descriptor(self)))); }
};

/// A memfd of `bytes`, with these seals.
inline Fd memfd(size_t bytes, int seals) {
  Fd fd(::memfd_create("mct-liar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(fd);
  REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

}  // namespace mc::xfer::test
