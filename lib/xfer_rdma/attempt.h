// One attempt at a path (internal): the verbs objects, which are made anew for every attempt, so that nothing of an
// earlier one (queue pair number, packet sequence, stale completions) can be mistaken for the present. One completion
// queue, L lanes, the test (RdmaProbe) and the messages (RdmaMailbox). An attempt that is not open has no lanes.
//
// WRITEs with an immediate take the first lane: each uses up one of the peer's receives, and they are counted on both
// sides, so that after a failure the sender learns which of them arrived (RdmaHold).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "xfer_rdma/mailbox.h"
#include "xfer_rdma/probe.h"
#include "xfer_rdma/reaper.h"

namespace mc::xfer {

struct RdmaRail;

/// The path that completion events of a queue are for; null once the path has let go of it. The queue's
/// context is this and not the path, because the queue may outlive it (see RdmaAttempt::close).
struct RailAnchor {
  RdmaRail* rail = nullptr;
};

class RdmaAttempt {
 public:
  /// Makes the objects, as told to the peer.
  Result<wire::RdmaPathOffer> open(RdmaRail& rail, const RdmaPort& port, const RdmaProbe::Attempt& attempt,
                                   size_t lanes);
  /// The work that connects its lanes to the peer's: to be run elsewhere, because it may block (connector.h). The
  /// attempt must not be closed meanwhile.
  using Work = std::function<Result<void>()>;
  Result<Work> connect(const RdmaPort& port, const wire::Gid& own_gid, const wire::RdmaPathOffer& peer, uint16_t mtu,
                       const Options& options);
  /// Completion events of it find no path any more.
  void orphan() { anchor_->rail = nullptr; }
  /// The end of the attempt: the NIC touches nothing of it any more. Slices that did not make it. Objects with requests
  /// that have not completed are destroyed at once, which may take seconds; others by `reaper`.
  std::vector<RdmaLane::Failed> close(RdmaReaper& reaper);

  /// Posts the test pattern on every lane.
  Result<void> start_probe() { return probe.post(lanes_, peer_); }
  Result<void> allow_writes(bool allowed);
  /// Sends a notify; see RdmaMailbox.
  int send(const wire::RdmaNotify& notify) { return mailbox_.send(*lanes_[0], notify); }
  std::span<const std::byte> message(uint32_t slot, uint32_t bytes) const { return mailbox_.message(slot, bytes); }
  int give_back(uint32_t slot) { return mailbox_.give_back(*lanes_[0], slot); }

  /// How many more WRITEs with an immediate the peer has receives for.
  size_t tells_left() const;
  /// The peer has taken this many of them. False: that is a lie.
  bool landed(uint64_t count);
  struct Heard {
    uint64_t count = 0;  // immediates of the peer's that came
    uint64_t told = 0;   // of those, how many it knows of: it may post kRdmaImmediatesAhead more
  } heard;
  /// Every receive of a failed attempt has come back: `heard` is final.
  bool deaf() const { return mailbox_.idle() || !probe.posted(); }

  /// Takes completions. `failure` is set by the first request that failed.
  struct Polled {
    size_t completions = 0;
    std::vector<Slice> ok;
    struct Message {
      uint32_t slot = 0;
      uint32_t bytes = 0;
      std::optional<uint32_t> immediate{};  // of a WRITE; else a SEND
    };
    std::vector<Message> messages;  // in order; their slots are given back
    WorkStatus failure = WorkStatus::ok;
    size_t failed_lane = 0;
  };
  void poll(Polled& out);
  /// Asks for an event at the next completion; poll() again afterwards. After the event: disarmed.
  void arm();
  void disarmed() { armed_ = false; }
  bool armed() const { return armed_ || !queue_; }
  void fail_lanes();
  bool drained() const;
  size_t outstanding() const;
  uint64_t bytes() const;  // in flight

  size_t lane_count() const { return lanes_.size(); }
  RdmaLane& lane(size_t index) { return *lanes_[index]; }
  const RdmaLane& lane(size_t index) const { return *lanes_[index]; }
  bool has(const ibv_qp* pair) const;
  const ibv_cq* queue() const { return queue_.get(); }
  uint16_t mtu() const { return mtu_; }

 private:
  void completed(const ibv_wc& done, Polled& out);

  // destroyed in reverse order: lanes before the queue and the memory they use, all before their device
  std::shared_ptr<RdmaDevice> device_;  // shared: a device that failed goes with the last of these

 public:
  RdmaProbe probe;

 private:
  RdmaMailbox mailbox_;
  std::unique_ptr<RailAnchor> anchor_;
  Verbs<ibv_cq> queue_;
  std::vector<std::unique_ptr<RdmaLane>> lanes_;
  wire::RdmaPathOffer peer_;
  uint16_t mtu_ = 0;
  bool armed_ = false;
  uint64_t landed_ = 0;
};

}  // namespace mc::xfer
