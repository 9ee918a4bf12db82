// The tcp transport (internal): endpoints of one control lane and S data lanes, each a FrameStream.
//   transport.cc  listening, dialling, handshakes, loss, timers
//   lane.cc       what frames mean: serving reads and writes, completing slices
//
// Lane 0 carries handshake, notifies, descriptors and goodbye, so that they never queue behind bulk
// bytes; lanes 1..S carry transfers of both directions. An answer comes back on the lane of its
// request. A peer never has more than kPendingMax requests outstanding on a lane: one that exceeds
// kServedMax is not honest and is closed.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "xfer/handshake.h"
#include "xfer/stream.h"
#include "xfer/transport.h"
#include "xfer_tcp/io.h"

namespace mc::xfer {

class TcpTransport;

struct TcpEndpoint;

/// One connection. Knows its endpoint once the handshake said which.
class TcpLane final : public FrameConsumer {
 public:
  static constexpr size_t kPendingMax = 512;
  static constexpr size_t kPendingBytesMax = size_t{4} << 20;
  static constexpr size_t kServedMax = 1024;
  static constexpr size_t kControlQueueMax = 1024;

  TcpLane(TcpTransport& transport, Fd fd, Handshake handshake)
      : transport_(transport), io(std::move(fd), io_of(transport)), handshake(std::move(handshake)) {}

  Code begin(const wire::FrameHeader& header, Sink& sink, const char*& why) override;
  Code end(const wire::FrameHeader& header, std::span<const std::byte> collected, uint32_t crc,
           const char*& why) override;

  /// FrameStream::receive, and what it moved is counted.
  FrameStream::Io receive(size_t budget);
  size_t post(std::span<const Slice> slices);
  bool cancel(uint64_t slice);
  /// Sends what is queued; reports slices whose cancelled frames are out now.
  FrameStream::Io flush(Reports& out);
  /// Lets go of every pin; the socket is about to close.
  void release();

  bool ready() const { return handshake.complete(); }
  /// Something is outstanding, so that no progress is a fault; half a frame of the peer's counts too,
  /// since it holds a pin.
  bool waiting() const { return !pending_.empty() || !io.idle() || io.receiving(); }

 private:
  struct Pending {
    Slice slice;
    bool cancelled = false;
  };
  static StreamIo& io_of(TcpTransport& transport);
  TcpTransport& transport_;

 public:
  FrameStream io;
  Handshake handshake;
  uint64_t token = 0;
  uint32_t armed = 0;       // epoll events
  bool connecting = false;  // connect() has not finished
  bool tells = false;       // writes with immediates came in on it
  uint16_t index = 0;       // lane in the endpoint
  TcpEndpoint* endpoint = nullptr;
  TimePoint deadline = kNever;  // of the handshake
  TimePoint progress{};         // when bytes last moved
  Reports* out = nullptr;       // set while frames are handled
  std::optional<News> failure;  // why the frame just handled ends the connection, when there is more to say

 private:
  Access& access() const;
  bool wants_crc() const;
  Code begin_handshake(const wire::FrameHeader& header, const char*& why) const;
  Code begin_data(const wire::FrameHeader& header, Sink& sink, const char*& why);
  void begin_write(const wire::FrameHeader& header, Sink& sink);
  Code end_handshake(const wire::FrameHeader& header, std::span<const std::byte> payload, const char*& why);
  Code end_control(const wire::FrameHeader& header, std::span<const std::byte> payload, const char*& why);
  Code end_answer(const wire::FrameHeader& header, std::span<const std::byte> text, uint32_t crc, const char*& why);
  Code serve_read(const wire::FrameHeader& header, const char*& why);
  Code end_write(const wire::FrameHeader& header, uint32_t crc, const char*& why);
  void send_ack();
  void drop_write_pin();
  size_t find(uint64_t slice) const;  // index in pending_, kNotPending without one
  void finish(size_t at, Code code, uint32_t crc, std::string text);

  static constexpr size_t kNotPending = SIZE_MAX;
  Fifo<Pending> pending_;  // in the order posted: an honest peer answers in that order
  size_t pending_bytes_ = 0;
  std::set<uint64_t> draining_;  // cancelled writes whose frame is half sent
  // The landing buffer being written into stays pinned for the small writes of one receive(): a lock behind
  // a copy waits until the copied bytes have reached the cache, a tenth of the time of 4 KiB writes.
  // One that was cut off by the end of a receive() keeps its pin, but the next one asks again: a peer whose writes
  // never end with a receive() would hold the buffer for ever, and write into it after it was revoked.
  uint32_t write_pin_ = 0;
  bool write_old_ = false;             // pinned in an earlier receive()
  std::span<std::byte> write_memory_;  // all of it
  Code write_code_ = Code::ok;
  const char* write_why_ = "";
  // Writes that came whole are acknowledged together, after what one receive() brought: of small ones an ack
  // each would cost a twentieth of the work on both sides.
  std::optional<wire::FrameHeader> unacked_;  // the last of them
  std::vector<FrameStream::Gone> gone_;       // scratch
  // Counted once a call of receive(): an atomic add behind a copy waits until the copied bytes have
  // reached the cache, which costs more than the rest of a small read.
  struct Moved {
    uint64_t read = 0, written = 0, served = 0, landed = 0;  // bytes
    uint64_t requests = 0;                                   // served
  } moved_;
};

struct TcpEndpoint {
  EndpointId id = EndpointId::none;
  bool accepted = false;
  bool up = false;
  bool told_lost = false;
  InstanceId wanted{};
  InstanceId peer{};
  bool proven = true;       // every lane that is here has proven itself
  bool established = true;  // of every lane that is here it is established whose it is
  Id128 connection{};
  uint32_t told_version = 0;                     // of the descriptor sent in the handshake
  std::vector<TcpLane*> lanes;                   // by index; null until that lane has arrived
  std::shared_ptr<const Descriptor> descriptor;  // immutable, handed on to the engine
  std::string name;

  /// The peer's instance, where it is established; else zero.
  InstanceId identity() const { return established ? peer : InstanceId{}; }
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(Home& home, uint8_t index)
      : home_(home), index_(index), io_(choose_tcp_io(home.options->tcp_io, *home.tally)) {}
  ~TcpTransport() override { shutdown(); }

  Result<std::string> listen() override;
  EndpointId connect(const Dial& dial, Reports& out) override;
  int lanes(EndpointId endpoint) const override;
  size_t post(EndpointId endpoint, int lane, std::span<const Slice> slices, Reports& out) override;
  bool cancel(EndpointId endpoint, int lane, uint64_t slice) override;
  Code notify(EndpointId endpoint, std::span<const std::byte> bytes, Reports& out) override;
  void publish(Reports& out) override;
  void close(EndpointId endpoint, Code code, std::string_view why, Reports& out) override;
  void shutdown() override;
  void ready(uint64_t token, uint32_t events, Reports& out) override;
  TimePoint tick(TimePoint now, Reports& out) override;
  void pause_notifies(bool pause) override;
  std::string remark() const override { return io_.text; }

  StreamIo& io() { return *io_.io; }
  Home& home() { return home_; }
  uint8_t index() const { return index_; }
  /// A lane finished its handshake. Code of refusal, else ok.
  Code joined(TcpLane& lane, const char*& why);

 private:
  static constexpr size_t kHandshakesMax = 256;
  static constexpr size_t kBudget = size_t{1} << 20;  // bytes a lane may move before others get their turn

  void accept_some();
  TcpLane* add_lane(Fd fd, Handshake handshake, uint32_t events);
  void arm(TcpLane& lane);
  bool paused(const TcpLane& lane) const;  // its frames wait until our owner takes events again
  void due(TimePoint at) { due_ = std::min(due_, at); }
  void on_lane(TcpLane& lane, uint32_t events, Reports& out);
  void broken(TcpLane& lane, Reports& out);
  void lose(TcpEndpoint& endpoint, Code code, bool gone, std::string text, Reports& out);
  void drop_lane(TcpLane* lane);
  bool take_over(const wire::XferHello& hello, Reports& out);
  void check_up(TcpEndpoint& endpoint, Reports& out);
  TcpEndpoint* find(EndpointId id);
  const TcpEndpoint* find(EndpointId id) const;

  Home& home_;
  uint8_t index_;
  TcpIoChoice io_;  // before the lanes, which use it
  Fd listener_;
  uint64_t listener_token_ = 0;
  bool listener_paused_ = false;                                  // out of descriptors; tried again at the next tick
  std::unordered_map<uint64_t, std::unique_ptr<TcpLane>> lanes_;  // by token; looked up, and timers only
  std::map<EndpointId, std::unique_ptr<TcpEndpoint>> endpoints_;
  std::vector<std::unique_ptr<TcpLane>> dropped_;  // closed, freed when no caller can hold them
  size_t handshakes_ = 0;
  TimePoint due_ = kNever;  // no timer of any lane is earlier: spares walking them every round
};

}  // namespace mc::xfer
