// The engine's inside (internal). Whoever holds turn_, nearly always the engine's thread, owns everything
// below the line "engine thread"; callers reach it through a queue of commands and read what it publishes
// under a mutex.
//
//   core_loop.cc     the loop, commands, timers, events to the caller
//   core_drive.cc    turns of the loop on a caller's thread
//   core_direct.cc   small batches that such a thread posts without one
//   core_peers.cc    dialling, connections up and lost, notifies
//   core_slices.cc   requests -> slices -> lanes, completions, retries
//   core_batches.cc  deadlines, cancelling, results, quarantine
//   core_here.cc     small batches of shm, copied by the thread that submits them
//
// Life of a request:  assigned to a route -> cut into slices as lanes have room -> posted -> done, or
// failed, or back to the route for another attempt (at most attempts_max, within the deadline).
// A slice exists from its cutting until no transport can touch its memory; a batch is released when
// none of its slices exists. Checked when idle: slices == 0 and local pins == 0.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "mem/mem.h"
#include "xfer/access.h"
#include "xfer/class_order.h"
#include "xfer/fifo.h"
#include "xfer/poller.h"
#include "xfer/tally.h"
#include "xfer/transport.h"

namespace mc::xfer {

Descriptor build_descriptor(const Home& home);
Id128 boot_id();

struct RequestState {
  uint64_t cut = 0;     // bytes given to slices so far
  uint64_t done = 0;    // bytes of finished slices
  uint32_t crc = 0;     // of finished slices, each shifted to its place: order does not matter
  uint32_t slices = 0;  // that exist
  bool finished = false;
};

struct Batch {
  BatchId id = BatchId::none;
  uint64_t cookie = 0;
  TimePoint deadline = kNever;
  std::vector<Request> requests;
  std::vector<BufferId> pins;  // of local buffers, one a request
  // engine thread, until done
  std::vector<RequestState> states;
  std::vector<RequestResult> results;
  size_t unfinished = 0;
  size_t slices = 0;       // that exist
  size_t quarantined = 0;  // bytes
  Code code = Code::ok;
  std::string text;
  // under Core::mutex_
  bool done = false;
  bool released = false;
  bool cancelled = false;

  /// As new, with the room its vectors have.
  void clear();
};

/// A request that waits for a lane, by batch and index.
struct Work {
  Batch* batch = nullptr;
  uint32_t request = 0;
};

struct SliceRecord {
  enum class State : uint8_t { free, posted, retry, quarantined };
  State state = State::free;
  uint32_t generation = 0;
  Batch* batch = nullptr;
  uint32_t request = 0;
  uint64_t at = 0;  // offset in the request
  uint32_t bytes = 0;
  int attempts = 0;
  EndpointId endpoint = EndpointId::none;
  int lane = 0;
};

/// One transport towards one peer.
struct Route {
  bool usable = false;
  bool dead = false;  // the wanted instance is provably not there
  std::string uri;
  std::string reason;  // why usable, or why not
  EndpointId dialling = EndpointId::none;
  std::vector<EndpointId> up;
  Duration backoff{};
  TimePoint next_try{};
  struct Waiting {
    std::deque<Work> queue;      // requests not fully cut
    std::deque<uint32_t> retry;  // slice indices
    // The same for what carries an immediate: not every lane takes it, and none without credit of the peer. What
    // waits for that must not keep others from the lanes that are free.
    std::deque<Work> telling;
    std::deque<uint32_t> retelling;
    bool told = false;  // the last slice that a lane took carried one
    /// Both in turn: a lane that takes fewer than it is offered would else never get to those behind.
    bool tells_next(bool tells) const {
      return tells && !(telling.empty() && retelling.empty()) && !(told && ready(false));
    }
    /// For a lane that takes immediates now, or does not.
    bool ready(bool tells) const {
      return !queue.empty() || !retry.empty() || (tells && !(telling.empty() && retelling.empty()));
    }
    bool empty() const { return !ready(true); }
  };
  std::array<Waiting, kTransferClasses> waiting;
  ClassOrder order;
  Waiting& of(TransferClass which) { return waiting[static_cast<size_t>(which)]; }
  bool idle() const {
    return std::all_of(waiting.begin(), waiting.end(), [](const Waiting& each) { return each.empty(); });
  }
};

/// What callers may read about a peer, under Core::mutex_.
struct PeerFace {
  bool up = false;
  size_t transport = 0;
  std::shared_ptr<const Descriptor> descriptor;
  struct Mapped {
    EndpointId endpoint;                         // that brought it
    std::shared_ptr<mem::SharedBuffer> mapping;  // shared with Views and copying callers
  };
  std::map<uint32_t, Mapped> arenas;  // by buffer id
  size_t notifies = 0;                // queued and not yet taken by a transport
  bool leaving = false;               // disconnect() was called
};

struct Peer {
  PeerId id = PeerId::none;
  InstanceId instance{};  // zero until known
  bool given = false;     // connect() was given its descriptor
  bool claimed = false;   // the instance was said, not proven: no connection of that instance joins this peer
  bool stranger = false;  // made by an accepted connection that proved nothing, and forgotten with it
  wire::Ticket ticket{};  // of the descriptor that was given
  std::string name;
  bool up = false;
  bool gone = false;
  bool leaving = false;     // being disconnected: takes no connection any more
  bool connecting = false;  // a connect() waits for peer_up
  TimePoint connect_deadline = kNever;
  std::string last_error;
  std::shared_ptr<const Descriptor> descriptor;
  std::vector<Route> routes;                    // one per active transport, in order of preference
  std::deque<Work> waiting;                     // requests made before the first descriptor
  std::deque<std::vector<std::byte>> notifies;  // refused by a full socket
  EndpointId voice = EndpointId::none;          // endpoint that carries notifies: one at a time keeps order
  Id128 line{};                                 // see Dial::connection; zero until the first dial
  uint64_t dials = 0;
};

struct LaneState {
  uint64_t bytes = 0;       // in flight
  uint64_t full_round = 0;  // took less than offered in that round: not asked again before something happened
  uint64_t passed = 0;      // in that call of pump_route() there was nothing for it
};

struct EndpointState {
  PeerId peer = PeerId::none;
  size_t route = 0;
  bool up = false;
  std::vector<LaneState> lanes;
};

struct Command {
  enum class Kind : uint8_t { submit, cancel, connect, disconnect, notify, publish, secret, resume, stop };
  Kind kind{};
  Batch* batch = nullptr;
  BatchId batch_id = BatchId::none;  // cancel: the batch itself may be gone
  PeerId peer = PeerId::none;
  TimePoint deadline = kNever;
  std::string uri{};                               // secret: the new one
  std::shared_ptr<const Descriptor> descriptor{};  // immutable, kept by caller and engine
  std::vector<std::byte> bytes{};
};

/// A transport that runs in this engine, with its row of the table.
struct ActiveTransport {
  const TransportEntry* entry = nullptr;
  size_t row = 0;
  std::unique_ptr<Transport> transport;
  TimePoint due{};  // of its next tick
};

class Engine::Core {
 public:
  static constexpr size_t kNotifiesMax = 1024;  // per peer, waiting in the engine

  Core(const Options& options, std::span<const TransportEntry* const> table)
      : secured_(!options.secret.empty()), options_(options), table_(table) {}
  ~Core();
  Result<void> start();
  void stop();

  void push(Command command);
  void disown(PeerId peer);
  std::unique_ptr<Batch> new_batch();
  void recycle(std::unique_ptr<Batch> batch);
  // core_drive.cc, on the caller's thread
  void submit_here(Batch& batch);
  void watch(TimePoint deadline);
  // any thread: the set of transports does not change after start()
  const TransportEntry* speaker_of(std::string_view uri) const;
  Result<BufferId> add_buffer(std::span<std::byte> memory, const Buffer& buffer, int fd);
  void detach(BufferId buffer);
  void run();

  // core_here.cc, on the caller's thread
  struct Place {
    std::byte* at = nullptr;
    std::shared_ptr<mem::SharedBuffer> mapping;  // shared: keeps it mapped while we copy. Null = as the one before
  };
  bool places_of(const Batch& batch, std::vector<Place>& places) const;
  void copy_here(Batch& batch, std::span<const Place> places);
  void report(Event&& event);
  size_t take_events(std::vector<Event>& out, size_t max, bool drained);

  const bool secured_;
  Options options_;
  const std::span<const TransportEntry* const> table_;
  Access access_;
  Tally tally_;
  Home home_;
  Poller poller_;
  std::vector<ActiveTransport> active_;  // the set does not change after start(); transports run under turn_
  std::vector<std::string> transport_texts_;

  // between threads
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // a batch was done or released
  std::vector<Command> commands_;
  std::atomic<bool> commanded_{false};  // commands_ is not empty: a hint, for whoever may look again
  std::atomic<Batch*> spare_{nullptr};  // owned: kept by close() for the next submit()
  bool sleeping_ = false;               // the engine's thread waits in the poller: wake it. Set under turn_ too
  EventFd wake_;
  std::map<BatchId, std::unique_ptr<Batch>> batches_;
  std::map<PeerId, PeerFace> faces_;
  std::map<InstanceId, PeerId> known_;  // instance -> peer
  uint64_t last_batch_ = 0;
  uint64_t last_peer_ = 0;
  std::mutex events_mutex_;
  Fifo<Event> events_;
  EventFd events_fd_;
  bool events_watched_ = false;    // under events_mutex_: the descriptor was given out, or a poll() sleeps on it
  bool events_polled_ = false;     //   "
  bool events_signalled_ = false;  //   "
  std::atomic<size_t> event_count_{0};
  std::atomic<uint64_t> polls_{0};  // times a caller waited for an event; with Options::spin only

 private:
  using Indices = std::vector<uint32_t>;

  static constexpr Duration kNap = 2ms;
  static constexpr Duration kPatience = 50us;  // submit() polls for the turn that long

  std::mutex turn_;                       // before mutex_
  std::atomic<bool> turn_wanted_{false};  // by the engine's thread: callers that poll leave it the turn
  // ---- engine thread from here on: under turn_ ----
  // core_drive.cc
  void wake();
  bool drive(Batch* batch, TimePoint& now);

  // core_direct.cc
  enum class Begun : uint8_t { no, yes, over };
  struct Direct {
    uint64_t slice = 0;
    uint32_t index = 0;
    size_t route = 0;
    LaneState* lane = nullptr;
  };
  Begun begin_directly(Batch& batch, TimePoint& until);
  bool post_directly(Batch& batch, Direct& posted);
  bool plainly_done(const Batch& batch, const Direct& posted) const;
  void finish_directly(Batch& batch, const Direct& posted);

  // core_loop.cc
  std::unique_lock<std::mutex> take_turn();
  TimePoint round(TimePoint& now);
  TimePoint nap(TimePoint now, TimePoint idle_since, TimePoint until);
  bool take_commands();
  void on_command(Command& command);
  bool handle_outbox();
  TimePoint timers(TimePoint now);
  void emit(Event&& event);
  void pause_if_full();
  Transport& transport_of(size_t route) { return *active_[route].transport; }

  // core_peers.cc
  Peer* find_peer(PeerId id);
  void on_connect(Command& command);
  void on_disconnect(PeerId id, std::string_view why);
  void learn_routes(Peer& peer);
  void dial(Peer& peer, size_t route);
  void seek(Peer& peer);
  void on_up(News& news);
  void on_lost(News& news);
  void on_descriptor(News& news);
  void keep_arenas(Peer& peer, News& news);
  void on_notify(PeerId id, std::vector<std::byte>&& bytes);
  void send_notifies(Peer& peer);
  void drop_notifies(Peer& peer);
  void peer_down(Peer& peer, Code code, bool gone, const std::string& text);
  void peer_gone(Peer& peer, const std::string& text);
  Peer* admit(const News& news);
  void publish_face(Peer& peer);
  std::string up_text(const Peer& peer, size_t route) const;
  std::string reasons(const Peer& peer) const;
  bool all_dead(const Peer& peer) const;

  // core_slices.cc
  void intake(Batch& batch);
  void assign(Batch& batch, uint32_t request);
  bool allowed(const BufferInfo& buffer, const Request& request) const;
  bool check_remote(const Peer& peer, Batch& batch, uint32_t request);
  size_t pick_route(Peer& peer, const BufferInfo& buffer, TimePoint now);
  void reassign(Peer& peer, size_t route);
  bool pump(Peer& peer);
  bool pump_route(Peer& peer, size_t route);
  LaneState* emptiest_lane(Route& route, EndpointId& endpoint, int& lane);
  struct LaneTurn {
    size_t lane_count = 1;  // of the route
    uint64_t wanted = 0;    // bytes of a slice at most
    size_t tells = 0;       // immediates that it takes
    TimePoint now{};
  };
  bool next_slice(Route& route, const LaneTurn& turn, uint32_t& index);
  void sort_out(Route& route, const LaneTurn& turn) const;
  uint64_t cut_bytes(const Work& work, const LaneTurn& turn) const;
  bool nothing_to_cut(const Work& work, const LaneTurn& turn) const;
  bool next_cut_tells(const Work& work, const LaneTurn& turn) const;
  void put_back(Route& route, uint32_t index, bool first);
  size_t offer(Peer& peer, size_t route, EndpointId endpoint, int lane, LaneTurn turn);
  TransferClass class_of(const SliceRecord& slice) const;
  bool tells(const SliceRecord& slice) const;
  uint32_t new_slice(Batch& batch, uint32_t request, uint64_t at, uint32_t bytes);
  void free_slice(uint32_t index);
  void release_slice(uint32_t index);
  uint64_t slice_id(uint32_t index) const;
  SliceRecord* find_slice(uint64_t id, uint32_t& index);
  void on_done(SliceDone& done);
  void slice_finished(uint32_t index, uint32_t crc);
  void slice_failed(uint32_t index, Code code, const std::string& text, bool unseen);
  void leave_lane(SliceRecord& slice);
  void endpoint_died(EndpointId id, Code code, const std::string& text);

  // core_batches.cc
  void finish_request(Batch& batch, uint32_t request, Code code, std::string text);
  void abandon_slices(Batch& batch, uint32_t request);
  void end_batch(Batch& batch, Code code, const std::string& text);
  void settle(Batch& batch);
  void drop_queued(Batch& batch);
  void expire(TimePoint now);
  void drain(TimePoint now);

  std::thread thread_;
  bool stopping_ = false;
  TimePoint sleep_until_{};  // while sleeping_
  // A caller polls the devices, so completions need not wake the engine's thread: it only looks every
  // kNap whether that is still so.
  bool driven_ = false;
  uint64_t polls_seen_ = 0;
  TimePoint nap_until_{};
  std::vector<Command> taken_;
  std::vector<PeerId> turn_peers_;  // scratch
  Outbox outbox_;
  Outbox handled_;  // being handled: handlers append to outbox_
  std::map<PeerId, Peer> peers_;
  std::map<EndpointId, EndpointState> endpoints_;
  uint64_t round_ = 1;
  uint64_t pump_ = 1;  // calls of pump_route()
  Indices offered_;    // scratch of offer()
  std::vector<Slice> offers_;
  std::set<PeerId> busy_;  // peers with work, notifies or a connect to look after
  std::vector<SliceRecord> slices_;
  std::vector<uint32_t> free_slices_;
  std::set<std::pair<TimePoint, BatchId>> deadlines_;
  std::set<std::pair<TimePoint, BatchId>> drains_;
  std::map<BatchId, Batch*> running_;  // submitted and not released
  std::set<BatchId> unsettled_;        // something changed: report or release them
};

}  // namespace mc::xfer
