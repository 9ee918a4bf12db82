// A path with its verbs objects (internal): one completion queue, L lanes and a scratch page, made anew
// for every attempt, so that nothing of an earlier one (queue pair number, packet sequence, stale
// completions) can be mistaken for the present. path.h says what states it goes through.
//
// Before a path is used each side writes 64 bytes into the other's scratch and reads 64 bytes of it, on
// every lane: the pattern depends on path, epoch, lane and side, and carries a CRC32C. Wrong GIDs, MTU
// or filters show up here, not in the first transfer.
//
// Notifies travel as SENDs of the first lane, from and into slots of memory that only this NIC may touch. WRITEs
// with an immediate take the first lane as well: each uses up one of its receives, and they are counted on both
// sides, so that after a failure the sender learns which of them arrived (RdmaHold).
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "wire/rdma_frame.h"
#include "xfer/token_bucket.h"
#include "xfer_rdma/hold.h"
#include "xfer_rdma/lane.h"
#include "xfer_rdma/reaper.h"

namespace mc::xfer {

class RdmaRail;

/// Who the completion events of a queue are for; null once the path has let go of it. The queue's
/// context is this and not the path, because the queue may outlive it (see RailRemains).
struct RailAnchor {
  RdmaRail* rail = nullptr;
};

/// Zeroed pages that hold nothing else: a process forked off may not touch registered ones (ibv_fork_init), and
/// would miss whatever lay beside them.
struct FreePages {
  void operator()(std::byte* pages) const { std::free(pages); }
};
using OwnPages = std::unique_ptr<std::byte[], FreePages>;
OwnPages own_pages(size_t bytes);

/// The verbs objects of an attempt that is over: every request posted on them has completed. Its lanes are destroyed
/// each for itself, and before it: see LaneRemains.
struct RailRemains {
  // destroyed in reverse order: lanes before the queue and the scratch they use, all before their device
  std::shared_ptr<RdmaDevice> device;  // shared: a device that failed goes with the last of these
  OwnPages scratch;
  OwnPages mail;
  std::unique_ptr<RailAnchor> anchor;
  Verbs<ibv_mr> scratch_region;
  Verbs<ibv_mr> mail_region;
  Verbs<ibv_cq> queue;
};
struct LaneRemains final : public RdmaReaper::Remains {
  LaneRemains(std::shared_ptr<RailRemains> all, std::unique_ptr<RdmaLane> one)
      : rest(std::move(all)), lane(std::move(one)) {}
  std::shared_ptr<RailRemains> rest;  // shared: goes with the last lane
  std::unique_ptr<RdmaLane> lane;
};

/// What the test pattern of a side looks like; `read` = what it leaves to be read, else what it writes.
std::array<std::byte, 64> path_pattern(uint32_t path, uint32_t epoch, uint32_t lane, bool dialler, bool read);

class RdmaRail {
 public:
  RdmaRail(uint32_t id, size_t local, size_t remote, const PathTimes& times)
      : machine(times), id_(id), local_(local), remote_(remote) {}

  PathMachine machine;
  EndpointId endpoint = EndpointId::none;  // whose path it is
  std::vector<GidChoice> choices;          // dialler: to try, best first
  size_t choice = 0;
  wire::RdmaPathOffer pending;  // listener: an offer that is not answered yet
  TimePoint next_answer{};
  bool exhausted = false;   // every choice has failed once
  bool told_ready = false;  // of this attempt
  std::string last_error;
  TokenBucket pace;
  bool paced = false;    // slices wait for it
  TimePoint progress{};  // of transfers, for the stall timer
  TimePoint drain_deadline = kNever;
  RdmaHold hold;                 // of this and earlier attempts
  std::set<uint64_t> cancelled;  // slices the NIC still holds though nobody wants them
  TimePoint cancelled_since = kNever;

  uint32_t id() const { return id_; }
  size_t local() const { return local_; }    // index of our port
  size_t remote() const { return remote_; }  // of the peer's
  void set_ports(size_t local, size_t remote) {
    local_ = local;
    remote_ = remote;
  }

  /// Objects of a new attempt, as told to the peer.
  Result<wire::RdmaPathOffer> open(const RdmaPort& port, size_t lanes, bool dialler);
  /// What connects its lanes to the peer's: to be run elsewhere, because it may block (connector.h). The path
  /// must not be closed meanwhile: see `joining`.
  using Work = std::function<Result<void>()>;
  Result<Work> connect(const RdmaPort& port, const wire::Gid& own_gid, const wire::RdmaPathOffer& peer, uint16_t mtu,
                       const Options& options);
  bool joining = false;  // that work is under way
  /// Completions of it are nobody's any more.
  void orphan() { anchor_->rail = nullptr; }
  wire::RdmaPathOffer own;  // listener: the answer that is sent when it is done
  /// Posts the test pattern on every lane.
  Result<void> probe();
  bool probing() const { return probing_; }  // probe() was called in this attempt
  bool probed() const { return probing_ && probes_left_ == 0; }
  /// Does the pattern we read, or the one the peer wrote here, look as it must?
  Result<void> check_read() const;
  Result<void> check_written() const;
  Result<void> allow_writes(bool allowed);
  /// Sends a notify. errno, 0 = posted; ENOMEM: no room now.
  int send(const wire::RdmaNotify& notify);
  /// What a SEND of the peer left in a slot, and its giving back.
  std::span<const std::byte> message(uint32_t slot, uint32_t bytes) const;
  int give_back(uint32_t slot);

  /// How many more WRITEs with an immediate the peer has receives for.
  size_t tells_left() const;
  /// The peer has taken this many of them in this attempt. False: that is a lie.
  bool landed(uint64_t count);
  struct Heard {
    uint64_t count = 0;  // immediates of the peer's that came in this attempt
    uint64_t told = 0;   // of those, what it knows of: it may post kRdmaImmediatesAhead more
  } heard;
  /// Every receive of a failed attempt has come back: `heard` is final.
  bool deaf() const { return receives_ == 0 || !probing_; }

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
  /// Work starts on an idle path, and bytes of it have arrived: the estimate of its speed.
  void started(TimePoint now);
  void moved(uint64_t bytes, TimePoint now);
  /// What it moves in kAheadTime, so that a slow path does not hold work a fast one could take.
  uint64_t allowance() const;
  /// Little else is in flight while one lane's requests are.
  bool shallow() const { return allowance() <= RdmaLane::kWindowBytes; }
  /// What one doorbell sets going at most: what it moves in kBurstTime. A software device carries it all in one go, and
  /// what takes long is put off to a kernel thread, which a caller that polls then competes with.
  uint64_t burst() const;
  double bytes_per_s() const { return bytes_per_s_; }  // 0 = not known yet
  /// It has nearly that much.
  bool sated() const { return bytes() + slice_bytes() > allowance(); }
  /// What it moves in kSliceTime; moderate until its speed is known.
  uint64_t slice_bytes() const;
  /// The end of the attempt: the NIC touches nothing of it any more. Slices that did not make it. What
  /// has not completed is destroyed at once, which may take seconds; what has, by `reaper`.
  std::vector<RdmaLane::Failed> close(RdmaReaper& reaper);

  size_t lane_count() const { return lanes_.size(); }
  RdmaLane& lane(size_t index) { return *lanes_[index]; }
  const RdmaLane& lane(size_t index) const { return *lanes_[index]; }
  bool has(const ibv_qp* pair) const;
  const ibv_cq* queue() const { return queue_.get(); }
  uint16_t mtu() const { return mtu_; }

 private:
  std::byte* slot(size_t lane, size_t part) const;
  Result<void> open_mail(const RdmaDevice& device);
  std::byte* mail_slot(size_t index) const;

  uint32_t id_;
  size_t local_;
  size_t remote_;
  bool dialler_ = false;
  uint16_t mtu_ = 0;
  // destroyed in reverse order, as RailRemains
  std::shared_ptr<RdmaDevice> device_;  // shared likewise
  OwnPages scratch_;
  OwnPages mail_;  // slots to receive into, then slots to send from
  std::unique_ptr<RailAnchor> anchor_;
  Verbs<ibv_mr> scratch_region_;
  Verbs<ibv_mr> mail_region_;
  Verbs<ibv_cq> queue_;
  std::vector<std::unique_ptr<RdmaLane>> lanes_;
  wire::RdmaPathOffer peer_;
  double bytes_per_s_ = 0;  // 0 = not known yet
  TimePoint measured_from_{};
  uint64_t measured_bytes_ = 0;
  bool armed_ = false;
  bool probing_ = false;
  size_t probes_left_ = 0;
  size_t receives_ = 0;  // posted
  uint64_t landed_ = 0;
};

}  // namespace mc::xfer
