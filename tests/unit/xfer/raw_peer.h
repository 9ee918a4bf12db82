// A peer made by hand: a plain socket that speaks frames, honestly or not.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/hash.h"
#include "base/uri.h"
#include "pair.h"
#include "wire/xfer_frame.h"

namespace mc::xfer::test {

using wire::FrameHeader;
using wire::FrameType;

inline InstanceId instance(uint8_t value) {
  InstanceId id;
  id.bytes.fill(value);
  return id;
}

inline FrameHeader frame(FrameType type, uint64_t id = 0, uint32_t buffer = 0, uint64_t offset = 0,
                         uint64_t length = 0) {
  FrameHeader header;
  header.type = static_cast<uint8_t>(type);
  header.id = id;
  header.buffer = buffer;
  header.offset = offset;
  header.length = length;
  return header;
}

/// The header with the checksum of its payload.
inline FrameHeader guarded(FrameHeader header, std::span<const std::byte> payload) {
  header.flags |= wire::kFrameHasPayloadCrc;
  header.payload_crc = crc32c(payload);
  return header;
}

struct RawSocket {
  Fd fd;
  bool send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return true;
  }
  bool send(const FrameHeader& header, std::span<const std::byte> payload = {}) {
    const auto head = wire::encode(header);
    std::vector<std::byte> both(head.begin(), head.end());
    both.insert(both.end(), payload.begin(), payload.end());
    return send(both);
  }
  bool send(FrameType type, std::vector<std::byte> payload) {
    FrameHeader header = frame(type);
    header.length = payload.size();
    return send(header, payload);
  }
  /// The next frame; nothing when the other side closed.
  struct Got {
    FrameHeader header;
    std::vector<std::byte> payload;
    std::string text() const { return {reinterpret_cast<const char*>(payload.data()), payload.size()}; }
  };
  std::optional<Got> receive(Duration limit = kLong) {
    Got got;
    wire::FrameBytes head;
    if (!read_all(fd.get(), head, in(limit))) return std::nullopt;
    const char* why = nullptr;
    REQUIRE(wire::decode(head, got.header, why) == Code::ok);
    got.payload.resize(got.header.payload_bytes());
    if (!read_all(fd.get(), got.payload, in(limit))) return std::nullopt;
    return got;
  }
  /// Until the other side closes; true when it does in time.
  bool closed(Duration limit = kLong) {
    std::byte sink[4096];
    const TimePoint deadline = in(limit);
    while (wait_fd(fd.get(), POLLIN, deadline)) {
      const ssize_t n = ::recv(fd.get(), sink, sizeof sink, 0);
      if (n <= 0) return true;
    }
    return false;
  }
};

inline RawSocket dial_raw(const std::string& uri) {
  auto place = parse_host_port(std::string_view(uri).substr(6));
  REQUIRE_OK(place);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(place->port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  RawSocket raw{Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  REQUIRE(::connect(raw.fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return raw;
}

inline Descriptor raw_descriptor(const InstanceId& self) {
  Descriptor descriptor;
  descriptor.name = "raw";
  descriptor.instance = self;
  descriptor.version = 1;
  return descriptor;
}

/// Dials an engine and completes the handshake of a control lane and one data lane.
struct RawClient {
  InstanceId self = instance(0x11);
  RawSocket control;
  RawSocket data;

  /// `dial`: which connection of its line this is.
  explicit RawClient(const std::string& uri, uint8_t line = 5, uint8_t dial = 1) {
    wire::XferHello hello{.instance = self, .lane_count = 2, .name = "raw"};
    hello.connection.bytes.fill(line);
    hello.connection.bytes[15] = dial;
    for (uint16_t lane = 0; lane < 2; ++lane) {
      RawSocket& raw = lane == 0 ? control : data;
      raw = dial_raw(uri);
      hello.lane = lane;
      REQUIRE(raw.send(FrameType::hello, wire::encode(hello)));
      const auto challenge = raw.receive();
      REQUIRE(challenge.has_value());
      REQUIRE(challenge->header.kind() == FrameType::challenge);
      std::vector<std::byte> proof(32);
      if (lane == 0) {
        const auto descriptor = wire::encode(raw_descriptor(self));
        proof.insert(proof.end(), descriptor.begin(), descriptor.end());
      }
      REQUIRE(raw.send(FrameType::proof, std::move(proof)));
      const auto ready = raw.receive();
      REQUIRE(ready.has_value());
      REQUIRE(ready->header.kind() == FrameType::ready);
    }
  }
};

/// Listens like an engine with one blocks buffer (id 1) and one landing buffer (id 2); the test says
/// what it answers.
struct RawServer {
  InstanceId self = instance(0x22);
  Fd listener;
  std::string uri;
  RawSocket control;
  RawSocket data;

  RawServer() : listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener.get(), 16) == 0);
    REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    uri = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  Descriptor descriptor(uint64_t length = 8 << 20) const {
    Descriptor descriptor = raw_descriptor(self);
    descriptor.uris = {uri};
    descriptor.buffers = {{.id = 1, .access = AccessClass::blocks, .length = length, .name = "kv"},
                          {.id = 2, .access = AccessClass::landing, .length = length, .name = "landing"}};
    return descriptor;
  }
  /// Accepts both lanes of an engine that has one data stream.
  void accept_peer() {
    for (int i = 0; i < 2; ++i) {
      REQUIRE_OK(wait_fd(listener.get(), POLLIN, in(kLong)));
      RawSocket raw{Fd(::accept(listener.get(), nullptr, nullptr))};
      const auto got = raw.receive();
      REQUIRE(got.has_value());
      const auto hello = wire::decode_hello(got->payload);
      REQUIRE_OK(hello);
      REQUIRE(hello->lane_count == 2);
      wire::XferChallenge challenge{.instance = self, .name = "raw"};
      REQUIRE(raw.send(FrameType::challenge, wire::encode(challenge)));
      REQUIRE(raw.receive().has_value());
      REQUIRE(raw.send(FrameType::ready, hello->lane == 0 ? wire::encode(descriptor()) : std::vector<std::byte>()));
      (hello->lane == 0 ? control : data) = std::move(raw);
    }
  }
};

/// An engine connected to a raw server, with 8 MiB of registered memory.
struct RawPair {
  static constexpr size_t kBytes = size_t{8} << 20;
  RawServer server;
  mem::HostBuffer local;
  Node reader;
  PeerId peer{};

  explicit RawPair(Options options = {}) : reader("reader", "tcp", one_stream(options)) {
    auto made = mem::HostBuffer::allocate(kBytes);
    REQUIRE_OK(made);
    local = std::move(*made);
    REQUIRE_OK(reader->register_buffer(local.bytes(), {"local"}));
    auto connected = reader->connect(wire::encode(server.descriptor()), in(kLong));
    REQUIRE_OK(connected);
    peer = *connected;
    server.accept_peer();
    reader.wait(Event::Kind::peer_up);
  }
  ~RawPair() { reader.engine.reset(); }
  static Options one_stream(Options options) {
    options.tcp_streams = 1;
    return options;
  }
  Request read(size_t length, uint64_t offset = 0) {
    return {.op = Op::read, .peer = peer, .local = local.bytes().first(length), .buffer = 1, .offset = offset};
  }
  Request write(size_t length) {
    return {.op = Op::write, .peer = peer, .local = local.bytes().first(length), .buffer = 2};
  }
};

}  // namespace mc::xfer::test
