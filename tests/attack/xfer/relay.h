// An attacker on the path between two engines: a relay that passes the bytes of every connection on, cut into the
// frames of the handshake, then into sealed records or, on a stream that is not sealed, into frames. A test says what
// becomes of each piece.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "base/fd.h"
#include "unit/xfer/pair.h"
#include "wire/xfer_frame.h"
#include "xfer/seal.h"

namespace mc::xfer::test {

using Bytes = std::vector<std::byte>;

/// A loopback socket that is bound and perhaps listens, and its port.
struct Bound {
  Fd fd;
  uint16_t port = 0;
  explicit Bound(bool listens) : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    if (listens) REQUIRE(::listen(fd.get(), 64) == 0);
    port = ntohs(address.sin_port);
  }
  std::string place() const { return "127.0.0.1:" + std::to_string(port); }
};

class Relay {
 public:
  struct Piece {
    bool to_listener = false;  // the dialler sent it
    bool handshake = false;    // a clear frame; else a record, or a frame of a stream that is not sealed
    size_t lane = 0;
    size_t number = 0;  // among the pieces of that direction of that connection
    Bytes bytes;
  };
  /// Returns the bytes that go on in place of the piece; no bytes leave it out. An empty optional ends the connection.
  using Attack = std::function<std::optional<Bytes>(const Piece& piece)>;

  Relay(uint16_t target, bool sealed) : listener_(true), target_(target), sealed_(sealed) {
    attack_ = [](const Piece& piece) { return piece.bytes; };
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  std::string place() const { return listener_.place(); }
  /// From now on, called by the relay's thread.
  void attack(Attack attack) {
    const std::lock_guard lock(mutex_);
    attack_ = std::move(attack);
  }

 private:
  struct Way {
    bool to_listener;
    int from, to;
    Bytes waiting;  // less than a piece
    size_t pieces = 0;
  };
  struct Link {
    Fd dialler, listener;
    size_t lane = 0;
    Way ways[2];
    bool closed = false;
  };

  /// Length of the piece at the front, or 0 while it is not whole.
  size_t piece_bytes(const Way& way) const {
    const auto& bytes = way.waiting;
    if (sealed_ && way.pieces > 0) {
      if (bytes.size() < kRecordHead) return 0;
      const size_t length = record_length(std::span<const std::byte>(bytes).first<kRecordHead>());
      if (length == 0) return bytes.size();  // a refusal in the clear
      return bytes.size() < length + kRecordExtra ? 0 : length + kRecordExtra;
    }
    if (bytes.size() < wire::kFrameHeaderBytes) return 0;
    wire::FrameHeader header;
    const char* why = nullptr;
    if (wire::decode(std::span<const std::byte>(bytes).first<wire::kFrameHeaderBytes>(), header, why) != Code::ok)
      return bytes.size();
    const size_t whole = wire::kFrameHeaderBytes + header.payload_bytes();
    return bytes.size() < whole ? 0 : whole;
  }

  void pass_on(Link& link, Way& way) {
    for (size_t bytes; !link.closed && (bytes = piece_bytes(way)) > 0;) {
      Piece piece{
          .to_listener = way.to_listener, .handshake = way.pieces == 0, .lane = link.lane, .number = way.pieces};
      piece.bytes.assign(way.waiting.begin(), way.waiting.begin() + static_cast<long>(bytes));
      way.waiting.erase(way.waiting.begin(), way.waiting.begin() + static_cast<long>(bytes));
      if (piece.handshake && way.to_listener)
        if (const auto hello = wire::decode_hello(std::span(piece.bytes).subspan(wire::kFrameHeaderBytes)))
          piece.lane = link.lane = hello->lane;
      ++way.pieces;
      std::optional<Bytes> out;
      {
        const std::lock_guard lock(mutex_);
        out = attack_(piece);
      }
      if (!out || !send_all(way.to, *out)) link.closed = true;
    }
  }

  static bool send_all(int fd, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return true;
  }

  void read(Link& link, Way& way) {
    std::byte some[65536];
    const ssize_t n = ::recv(way.from, some, sizeof some, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) link.closed = true;
    if (n <= 0) return;
    way.waiting.insert(way.waiting.end(), some, some + n);
    pass_on(link, way);
  }

  void accept_one() {
    Link& link = links_.emplace_back();
    link.dialler = Fd(::accept(listener_.fd.get(), nullptr, nullptr));
    link.listener = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(target_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    link.closed = ::connect(link.listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0;
    link.ways[0] = {true, link.dialler.get(), link.listener.get(), {}, 0};
    link.ways[1] = {false, link.listener.get(), link.dialler.get(), {}, 0};
  }

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::vector<pollfd> wanted{{listener_.fd.get(), POLLIN, 0}};
      for (Link& link : links_)
        for (Way& way : link.ways) wanted.push_back({way.from, POLLIN, 0});
      if (::poll(wanted.data(), wanted.size(), 20) <= 0) continue;
      size_t at = 1;
      for (Link& link : links_)
        for (Way& way : link.ways)
          if (wanted[at++].revents != 0 && !link.closed) read(link, way);
      links_.remove_if([](const Link& link) { return link.closed; });
      if (wanted[0].revents != 0) accept_one();
    }
  }

  Bound listener_;
  uint16_t target_;
  bool sealed_;
  std::mutex mutex_;
  Attack attack_;
  std::list<Link> links_;
  std::jthread thread_;  // the last to be made, the first to end
};

/// A holder of KV and a reader that reaches it through the relay only.
struct Relayed {
  static constexpr size_t kBytes = size_t{1} << 20;
  Bound place{false};
  Bound hole{
      true};  // what the reader tells the holder to dial: never accepts, so that no connection passes the relay by
  Relay relay;
  Node holder, reader;
  mem::HostBuffer kv, landing, local;
  PeerId peer{};
  uint32_t kv_id = 0, landing_id = 0;

  static Options options(const std::string& seal) {
    Options out;
    out.secret = seal == "none" ? std::string() : std::string(32, 's');
    out.tcp_seal = seal == "none" ? "off" : seal;
    out.backoff_min = 5ms;
    out.backoff_max = 50ms;
    out.stall_timeout = 500ms;  // a record whose length grew is waited for
    out.connect_timeout = 1s;
    return out;
  }
  static Options told(Options options, const std::string& bind, const std::string& told) {
    options.tcp_bind = bind;
    options.tcp_advertise = told;
    return options;
  }
  Relayed(const std::string& holder_seal, const std::string& reader_seal)
      : relay(place.port, holder_seal == "on" || reader_seal == "on"),
        holder("holder", "tcp", told(options(holder_seal), place.place(), relay.place())),
        reader("reader", "tcp", told(options(reader_seal), "127.0.0.1:0", hole.place())) {
    for (mem::HostBuffer* buffer : {&kv, &landing, &local}) {
      auto made = mem::HostBuffer::allocate(kBytes);
      REQUIRE_OK(made);
      *buffer = std::move(*made);
    }
    fill(kv.bytes(), 7);
    auto kv_buffer = holder->register_buffer(kv.bytes(), {"kv", AccessClass::blocks});
    auto landing_buffer = holder->register_buffer(landing.bytes(), {"landing", AccessClass::landing});
    REQUIRE_OK(kv_buffer);
    REQUIRE_OK(landing_buffer);
    REQUIRE_OK(reader->register_buffer(local.bytes(), {"local"}));
    kv_id = static_cast<uint32_t>(*kv_buffer);
    landing_id = static_cast<uint32_t>(*landing_buffer);
  }
  ~Relayed() {
    reader.engine.reset();
    holder.engine.reset();
  }
  void dial() {
    auto connected = reader->connect(holder->describe(), in(kLong));
    REQUIRE_OK(connected);
    peer = *connected;
  }
  void connect() {
    dial();
    reader.wait(Event::Kind::peer_up);
  }
  Request read(size_t at, size_t length) {
    return {.op = Op::read, .peer = peer, .local = local.bytes().subspan(at, length), .buffer = kv_id, .offset = at};
  }
  Request write(size_t at, size_t length) {
    return {
        .op = Op::write, .peer = peer, .local = local.bytes().subspan(at, length), .buffer = landing_id, .offset = at};
  }
  /// The failures of both engines, counted by reason.
  uint64_t failures(const std::string& reason) {
    uint64_t count = 0;
    for (Node* node : {&holder, &reader})
      for (const auto& [name, times] : (*node)->counters().failures)
        if (name.find(reason) != std::string::npos) count += times;
    return count;
  }
};

}  // namespace mc::xfer::test
