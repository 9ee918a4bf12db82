// The rdma transport (internal). An endpoint is one authenticated socket to a peer, over which both
// sides tell ports, keys and queue pairs, and several paths, each of a few lanes, that carry the bytes.
// The socket's end is the peer's death; a path's end is not.
//
//   transport.cc  the socket: listening, dialling, loss, timers; the table's entry
//   link.cc       what frames on it mean; ports, keys, descriptors
//   paths.cc      paths are set up: planned, begun, answered, verified
//   serve.cc      paths in use: slices in and out, failed, drained
//   events.cc     what the devices tell: ports, addresses, devices that fail and come back
//   send.cc       notifies: SENDs on a path, or frames on the socket
//   rest.cc       connections without queue pairs, because there are too many
//   rail.cc, lane.cc, memory.cc, device.cc, reaper.cc, revival.cc,
//   connector.cc   verbs objects
//   path.cc, gid.cc, plan.cc, pool.cc, notify.cc        decisions, without a device
//
// The dialler plans the paths and begins every attempt; the listener answers. What a path cannot finish
// goes back to the engine when its queue pairs have let go of the memory, and is posted elsewhere.
// Nothing below destroys an endpoint while it may be on the stack: it is marked doomed and swept.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "xfer/handshake.h"
#include "xfer/stream.h"
#include "xfer/transport.h"
#include "xfer_rdma/connector.h"
#include "xfer_rdma/notify.h"
#include "xfer_rdma/pool.h"
#include "xfer_rdma/rail.h"
#include "xfer_rdma/reaper.h"
#include "xfer_rdma/revival.h"

namespace mc::xfer {

class RdmaTransport;

struct RdmaEndpoint final : public FrameConsumer {
  RdmaEndpoint(RdmaTransport& owner, Fd fd, Handshake with)
      : transport(owner), io(std::move(fd)), handshake(std::move(with)) {}

  Code begin(const wire::FrameHeader& header, Sink& sink, const char*& why) override;
  Code end(const wire::FrameHeader& header, std::span<const std::byte> payload, uint32_t crc,
           const char*& why) override;
  void push(OutFrame frame);

  RdmaTransport& transport;
  FrameStream io;
  Handshake handshake;
  EndpointId id = EndpointId::none;
  uint64_t token = 0;
  uint32_t armed = 0;  // epoll events
  bool accepted = false;
  bool connecting = false;  // connect() has not finished
  bool up = false;          // a path carries, or has carried
  InstanceId wanted{};
  InstanceId peer{};
  std::string name;
  TimePoint deadline = kNever;                   // to be up
  TimePoint progress{};                          // when the socket last moved
  std::shared_ptr<const Descriptor> descriptor;  // immutable, handed on to the engine

  std::vector<wire::RdmaNic> nics;          // of the peer
  std::map<uint32_t, wire::RdmaKeys> keys;  // of its buffers
  uint32_t keys_version = 0;                // of its descriptor when they were complete
  std::set<uint32_t> told;                  // buffers of ours whose keys it has
  std::vector<std::unique_ptr<RdmaRail>> rails;
  size_t lanes_per_path = 0;
  TimePoint dark_since = kNever;  // no path is up since then

  // see send.cc
  NotifySender notifies_out;
  NotifyReceiver notifies_in;
  RdmaRail* voice = nullptr;         // the path that carries our SENDs, one at a time
  std::vector<uint32_t> immediates;  // came before we were up

  // see rest.cc
  TimePoint used{};            // when a slice was last posted or done
  bool yielding = false;       // takes no slices: its queue pairs may have to go
  bool insisting = false;      // ours: tell the peer when nothing is posted here
  bool insisted = false;       // the peer's: rest when nothing is posted here
  bool resting = false;        // its paths have failed and drain
  bool wanted_again = false;   // work came while it was resting
  bool asked_to_wake = false;  // listener: the dialler knows that we want paths
  bool offered() const;        // listener: the dialler waits for answers
  TimePoint up_at{};

  Reports* out = nullptr;       // set while frames are handled
  std::optional<News> failure;  // why it is doomed, or why the frame just handled ends it
  bool doomed = false;
};

class RdmaTransport final : public Transport {
 public:
  RdmaTransport(Home& home, uint8_t index)
      : home_(home),
        index_(index),
        revival_([this](size_t index, const std::string& name) { return reopen(memory_, index, name); },
                 home.options->rdma_cooldown_min, home.options->rdma_cooldown_max),
        pool_(home.options->rdma_pairs_max) {}
  ~RdmaTransport() override { shutdown(); }

  Result<std::string> listen() override;
  EndpointId connect(const Dial& dial, Reports& out) override;
  int lanes(EndpointId endpoint) const override;
  size_t post(EndpointId endpoint, int lane, std::span<const Slice> slices, Reports& out) override;
  uint64_t slice_bytes(EndpointId endpoint, int lane) const override;
  size_t immediates_ahead(EndpointId endpoint, int lane) const override;
  bool cancel(EndpointId endpoint, int lane, uint64_t slice) override;
  Code notify(EndpointId endpoint, std::span<const std::byte> bytes, Reports& out) override;
  void publish(Reports& out) override;
  void close(EndpointId endpoint, Code code, std::string_view why, Reports& out) override;
  void shutdown() override;
  void ready(uint64_t token, uint32_t events, Reports& out) override;
  TimePoint tick(TimePoint now, Reports& out) override;
  TimePoint look(Reports& out) override;
  void doze(Reports& out) override;
  void pause_notifies(bool pause) override;
  Result<void> attach(BufferId buffer, std::span<std::byte> memory, AccessClass access) override;
  void detach(BufferId buffer) override;

  // link.cc
  Code on_frame(RdmaEndpoint& endpoint, const wire::FrameHeader& header, std::span<const std::byte> payload,
                const char*& why);

 private:
  static constexpr size_t kStrangersMax = 256;  // sockets that have not proven themselves
  static constexpr size_t kQueueMax = 1024;     // notifies wait for one peer while fewer frames do
  static constexpr size_t kUnreadMax = 8192;    // frames waiting for one peer, answers among them
  static constexpr size_t kChoicesMax = 4;      // address pairs tried for one path
  static constexpr uint64_t kAheadBytes = uint64_t{256} << 10;
  static constexpr Duration kAnswerPause = 20ms;  // between two answers to offers of one path
  static constexpr Duration kDrainMax = 1s;       // after which queue pairs are destroyed instead

  // transport.cc
  RdmaEndpoint* add(Fd fd, Handshake handshake, uint32_t events);
  void accept_some();
  void on_socket(RdmaEndpoint& endpoint, uint32_t events, Reports& out);
  void arm(RdmaEndpoint& endpoint);
  void due(TimePoint at) { due_ = std::min(due_, at); }
  RdmaEndpoint* find(EndpointId id) const;
  void doom(RdmaEndpoint& endpoint, Code code, bool gone, std::string text);
  void lose(RdmaEndpoint& endpoint, const News& why, Reports& out);
  void part(EndpointId id, TimePoint now, Reports& out);
  void broken(RdmaEndpoint& endpoint);
  /// Sends what was queued and removes what is doomed. Every entry of the transport ends with it.
  void sweep(Reports& out);
  void timers(RdmaEndpoint& endpoint, TimePoint now, Reports& out);

  // link.cc
  Code on_handshake(RdmaEndpoint& endpoint, const wire::FrameHeader& header, std::span<const std::byte> payload,
                    const char*& why);
  Code joined(RdmaEndpoint& endpoint, const char*& why);
  void settle_twins(RdmaEndpoint& endpoint);
  Code on_nics(RdmaEndpoint& endpoint, std::span<const std::byte> payload, const char*& why);
  Code on_keys(RdmaEndpoint& endpoint, std::span<const std::byte> payload, const char*& why);
  Code on_describe(RdmaEndpoint& endpoint, std::span<const std::byte> payload, const char*& why);
  wire::RdmaNics own_nics() const;
  void tell_ports();
  void tell_keys(RdmaEndpoint& endpoint);
  bool takes_writes(const RdmaEndpoint& endpoint, const Descriptor& own) const;

  // paths.cc
  Code on_path(RdmaEndpoint& endpoint, const wire::FrameHeader& header, std::span<const std::byte> payload,
               const char*& why);
  void plan(RdmaEndpoint& endpoint);
  void begin(RdmaEndpoint& endpoint, RdmaRail& rail);
  bool startable(const RdmaEndpoint& endpoint, const RdmaRail& rail) const;
  Code on_offer(RdmaEndpoint& endpoint, const wire::RdmaPathOffer& offer, const char*& why);
  void answer_pending(RdmaEndpoint& endpoint, RdmaRail& rail);
  void answer(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathOffer& offer);
  void on_answer(RdmaEndpoint& endpoint, RdmaRail& rail, const wire::RdmaPathOffer& answer);
  void join(RdmaRail& rail, RdmaRail::Work work);
  void on_joined(const RdmaConnector::Done& done, Reports& out);
  void on_ready(RdmaEndpoint& endpoint, RdmaRail& rail);
  void on_probed(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out);
  void rail_up(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out);
  void check_dial(RdmaEndpoint& endpoint);
  std::string rail_name(const RdmaEndpoint& endpoint, const RdmaRail& rail) const;

  // rest.cc
  size_t paths_max(size_t lanes) const;
  size_t pairs_of(const RdmaEndpoint& endpoint) const;
  void wake(RdmaEndpoint& endpoint);
  void granted(RdmaEndpoint& endpoint);
  void rest(RdmaEndpoint& endpoint, bool tell, Reports& out);
  void rested(RdmaEndpoint& endpoint);
  void release_pairs(RdmaEndpoint& endpoint);
  Code on_rest(RdmaEndpoint& endpoint, uint64_t verb, const char*& why);
  void take_step(const RdmaPool::Step& step, Reports& out);
  void share_pairs(Reports& out);

  // send.cc
  RdmaRail* voice_of(RdmaEndpoint& endpoint) const;
  bool send(RdmaEndpoint& endpoint, std::span<const std::byte> bytes, Reports& out);
  void send_on_socket(RdmaEndpoint& endpoint, uint64_t sequence, std::vector<std::byte> bytes);
  void voice_lost(RdmaEndpoint& endpoint);
  void take_messages(RdmaEndpoint& endpoint, RdmaRail& rail, std::span<const RdmaRail::Polled::Message> messages,
                     Reports& out);
  const char* take_send(RdmaEndpoint& endpoint, std::span<const std::byte> message);
  const char* take_immediate(RdmaEndpoint& endpoint, RdmaRail& rail, uint32_t immediate);
  Code on_notify(RdmaEndpoint& endpoint, const wire::FrameHeader& header, std::span<const std::byte> payload,
                 const char*& why);
  Code on_heard(RdmaEndpoint& endpoint, uint64_t count, const char*& why);
  void deliver(RdmaEndpoint& endpoint, Reports& out);
  void tell_heard(RdmaEndpoint& endpoint);
  void tell_landed(RdmaEndpoint& endpoint);
  void send_landed(RdmaEndpoint& endpoint, RdmaRail& rail, wire::LandedState state);
  Code on_landed(RdmaEndpoint& endpoint, const wire::FrameHeader& header, const char*& why);

  // serve.cc
  void serve(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out);
  void fail(RdmaEndpoint& endpoint, RdmaRail& rail, PathCause cause, const std::string& text, bool tell, Reports& out);
  void peer_end_gone(RdmaRail& rail, uint32_t epoch, Reports& out);
  void finish_drain(RdmaEndpoint& endpoint, RdmaRail& rail, Reports& out);
  void report(const Slice& slice, Reports& out);
  bool resolve(RdmaEndpoint& endpoint, const RdmaRail& rail, const Slice& slice, PlanItem& item, SliceDone& refusal,
               bool& later);
  size_t room(const RdmaEndpoint& endpoint, RdmaRail& rail, size_t index, std::span<const Slice> slices);
  uint64_t window(const RdmaEndpoint& endpoint, const RdmaRail& rail) const;
  bool yields(const RdmaEndpoint& endpoint, const RdmaRail& rail, const Slice& slice);
  size_t paced(RdmaRail& rail, std::span<const Slice> slices);
  RdmaRail* rail_of(EndpointId endpoint, int lane, size_t& index) const;
  void on_completions(RdmaDevice& device, Reports& out);
  void poll_rails(bool arm, Reports& out);

  // events.cc
  void on_port_event(RdmaDevice& device, int port, Reports& out);
  void replan(RdmaEndpoint& endpoint, Reports& out);
  void lose_device(RdmaDevice& device, const std::string& why, Reports& out);
  void device_back(const RdmaRevival::Back& back);
  Result<void> watch(RdmaDevice& device);
  void unwatch_channel(const RdmaDevice& device);
  void inject_device_loss(TimePoint at, Reports& out);
  template <class Select>
  void fail_where(Select select, PathCause cause, const std::string& text, Reports& out);
  void on_device_events(RdmaDevice& device, Reports& out);
  size_t device_index(size_t port) const;

  Home& home_;
  uint8_t index_;
  Fd listener_;
  uint64_t listener_token_ = 0;
  bool listener_paused_ = false;
  // destroyed in reverse order: endpoints (lanes), what is left of them, then memory, then devices
  RdmaHardware hardware_;
  RdmaMemory memory_;
  RdmaReaper reaper_;
  RdmaRevival revival_;
  RdmaConnector connector_;
  uint64_t connector_token_ = 0;
  std::vector<std::unique_ptr<RdmaRail>> orphans_;  // of connections that are gone, while they are being connected
  uint64_t revival_token_ = 0;
  TimePoint lose_nic_at_ = kNever;
  bool placed_ = false;                       // the ports' places differ: distances count
  std::vector<PathLoad> loads_;               // scratch
  std::map<uint64_t, RdmaDevice*> channels_;  // by poller token
  std::map<uint64_t, RdmaDevice*> async_;
  std::map<EndpointId, std::unique_ptr<RdmaEndpoint>> endpoints_;
  std::map<uint64_t, RdmaEndpoint*> by_token_;
  struct Parting {
    TimePoint at{};
    News news;
  };
  std::vector<Parting> partings_;  // `lost` that waits because WRITEs of it may still be under way; see RdmaHold
  std::vector<std::unique_ptr<RdmaEndpoint>> dropped_;  // closed, freed when no caller can hold them
  size_t strangers_ = 0;
  RdmaPool pool_;
  TimePoint due_ = kNever;
  TimePoint round_{};            // of the latest tick or event: when completions are found
  RdmaRail::Polled polled_;      // scratch
  std::vector<PlanItem> items_;  // scratch
};

}  // namespace mc::xfer
