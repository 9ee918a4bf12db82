// Carries lease messages between nodes by calls over remote-fetch channels, where the host has channels. It is no more
// than another way for the messages: the holder's Lender decides, and the reader's parts see the messages that they
// would see by control. It owns no socket, thread or clock.
//
//   reader   Send LeaseRequest -> call -> answer -> Received LeaseGrant         Send LeaseRelease -> call
//   holder   request -> Received LeaseRequest ... Send LeaseGrant -> answer     request -> Received LeaseRelease
//
// A renewal travels as a request of a lease does: LeaseRenew -> LeaseRenewed. While its call is open, the next renewal
// of the lease goes by control: the channel may be as slow as the read.
//
// A message goes by control when no channel is ready, when it does not fit, and when the holder may wait on purpose
// (wait_ms): a call is for answers that come at once. The grant of a holder that has to read its disk first goes by
// control as well. A call that fails is repeated by control under the same lease number, and the holder's Lender
// replaces the first request if it got it.
//
// A release must not overtake its request. It goes over the channel only when the grant came over it. While the call of
// the request is open, the release waits for its end.
//
// Lookups and touches travel over channels alone. The holder answers lookups from the table that it publishes
// (kv/block_table.h), so they do not wait for its state machine. A touch is for that machine, and gets an empty answer
// at once. A lookup without a channel has failed, and the reader does without the answer.
//
// Payloads come from peers that proved to belong to the cluster, and they may still be garbage: decoding bounds them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kv/block_table.h"
#include "node/node.h"
#include "wire/lease_call.h"

namespace mc::node {

/// The channels of the host, by the instance at the other end.
class LeaseLines {
 public:
  virtual ~LeaseLines() = default;
  /// Starts a call and returns its number, which is not 0. LeaseCarrier::on_answer() or calls_lost() ends it. 0: no
  /// channel takes the call now. One that is missing may be opened meanwhile, for later calls.
  virtual uint64_t call(const InstanceId& holder, wire::LeaseMethod method, std::span<const uint8_t> payload,
                        TimePoint now) = 0;
  /// Answers the request with this number. False: the payload does not fit, and the request is still open. The answer
  /// to a channel that is lost goes nowhere.
  virtual bool answer(const InstanceId& reader, uint64_t number, wire::LeaseStatus status,
                      std::span<const uint8_t> payload, TimePoint now) = 0;
};

class LeaseCarrier {
 public:
  /// Counts since the start. This node is the reader of the first three, and the holder of the others.
  struct Stats {
    uint64_t by_channel = 0, by_control = 0;  // lease requests, by the way that they took first
    uint64_t repeated = 0;                    // requests, renewals and releases whose call failed
    uint64_t served = 0;                      // lease requests that came by channel
    uint64_t late = 0;     // answers of the machine that did not fit into a slot, or did not come at once
    uint64_t refused = 0;  // calls with wrong bytes or with a number in use
    uint64_t lookups_asked = 0, lookups_failed = 0;  // of this node; a lookup without a channel has failed
    uint64_t lookups_served = 0;
    uint64_t touches_served = 0;
    uint64_t renewals_granted = 0, renewals_refused = 0;  // by this node's machine, over channels and by control
  };
  struct Time {
    bool by_channel = false;  // the way that the grant came by
    double seconds = 0;       // from the request to the grant
  };

  /// `lines` outlives it.
  explicit LeaseCarrier(LeaseLines& lines) : lines_(lines) {}

  /// True: the message travels over a channel. False: the caller sends it by control.
  bool send(const Send& send, TimePoint now);
  /// A message came by control; the machine gets it as well.
  void heard(const Received& message, TimePoint now);

  /// A LookedUp follows from next_answer().
  void look_up(const Lookup& lookup, TimePoint now);
  /// Without a channel that takes the call nothing happens.
  void touch(const Touch& touch, TimePoint now);
  /// Lookups of peers are refused without a table. `table` outlives the carrier.
  void answer_from(const kv::BlockTable& table) { table_ = &table; }

  /// A call has ended. `payload` is valid when `code` is ok.
  void on_answer(const InstanceId& holder, uint64_t number, Code code, uint16_t status,
                 std::span<const uint8_t> payload, TimePoint now);
  /// All open calls to the holder have failed.
  void calls_lost(const InstanceId& holder, TimePoint now);
  /// A request of the reader, whose name is that in the list of peers.
  void on_request(const NodeId& name, const InstanceId& reader, uint64_t number, uint16_t method,
                  std::span<const uint8_t> payload, TimePoint now);
  /// Ends the calls of readers whose grants are not there yet after kAtOnce: their grants go by control.
  void on_time(TimePoint now);
  /// When on_time() has something to do.
  TimePoint next_wakeup() const;
  /// The channel of the reader is gone: grants to its open requests go by control.
  void requests_lost(const InstanceId& reader);
  /// The instance has left the cluster.
  void forget(const InstanceId& instance);

  /// The next message for the machine.
  std::optional<Received> next();
  /// The next touch for the machine.
  std::optional<Touched> next_touch();
  /// The next answer for the machine.
  std::optional<LookedUp> next_answer();
  /// Messages that must go by control now, in order.
  std::vector<Send> take_fallen() { return std::exchange(fallen_, {}); }
  /// Times since the last call; at most kTimesKept.
  std::vector<Time> take_times() { return std::exchange(times_, {}); }
  const Stats& stats() const { return stats_; }
  /// No call and no request is open.
  bool idle() const { return calls_.empty() && asked_.empty() && renewing_.empty() && lookups_.empty(); }

 private:
  static constexpr size_t kTimesKept = 4096, kLeasesKept = 4096;
  static constexpr Duration kAtOnce = 20ms;
  using Key = std::pair<InstanceId, uint64_t>;  // and the number of a call or of a lease
  struct Call {
    Send message;
    bool released = false;  // the reader has given up the lease meanwhile
  };
  struct Looking {
    uint64_t lookup = 0;
    size_t blocks = 0;
  };
  struct Asked {
    uint64_t number = 0;
    TimePoint at{};
    uint32_t round = 0;  // of a renewal
  };

  void end_lookup(const Looking& looking, Code code, uint16_t status, std::span<const uint8_t> payload);
  void serve_lookup(const InstanceId& reader, uint64_t number, std::span<const uint8_t> payload, TimePoint now);
  bool send_request(const Send& send, const wire::LeaseRequest& request, TimePoint now);
  bool send_release(const Send& send, const wire::LeaseRelease& release, TimePoint now);
  bool send_renewal(const Send& send, const wire::LeaseRenew& renew, TimePoint now);
  bool send_grant(const Send& send, const wire::LeaseGrant& grant, TimePoint now);
  bool send_renewed(const Send& send, const wire::LeaseRenewed& renewed, TimePoint now);
  /// Whether the call brought the grant of its request.
  bool take_grant(const Call& call, const wire::LeaseRequest& request, std::span<const uint8_t> payload, TimePoint now);
  bool take_renewed(const Call& call, const wire::LeaseRenew& renew, std::span<const uint8_t> payload);
  void fail(Call call);
  void refuse(const InstanceId& reader, uint64_t number, TimePoint now);
  void note_time(const Key& lease, bool by_channel, TimePoint now);
  void keep(std::map<Key, TimePoint>& leases, const Key& lease, TimePoint at);

  LeaseLines& lines_;
  std::map<Key, Call> calls_;         // open, by number of the call
  std::map<Key, Looking> lookups_;    // open, by number of the call
  std::map<Key, uint64_t> leasing_;   // open calls of requests, by number of the lease
  std::map<Key, TimePoint> granted_;  // leases whose grant came over a channel: when it came
  std::map<Key, TimePoint> began_;    // when a lease without a grant was requested
  std::map<Key, Asked> asked_;        // requests of readers without an answer, by lease
  std::map<Key, Asked> renewing_;     // renewals of readers without an answer, by lease
  const kv::BlockTable* table_ = nullptr;
  std::deque<Received> received_;
  std::deque<LookedUp> answered_;
  std::deque<Touched> touched_;
  std::vector<Send> fallen_;
  std::vector<Time> times_;
  Stats stats_;
};

}  // namespace mc::node
