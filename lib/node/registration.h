// A node's registration with the conductor, from the node's side: when a Hello or a heartbeat is due, and which
// conductor counts.
//
//   absent --Hello--> asked --Welcome--> member --(silence | unknown to the conductor | another conductor)--> absent
//
// A conductor that was restarted has a new instance. Messages of the previous instance may still arrive, and they do
// not count. A node that has left asks for no registration.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "base/rng.h"
#include "node/node.h"

namespace mc::node {

inline constexpr std::string_view kConductor = "conductor";
/// The operators of a node, who ask it without a conductor. They are in the node's own process, and no peer may take
/// this name.
inline constexpr std::string_view kOperators = "#operators";

class Registration {
 public:
  /// `name` may be empty: the conductor then chooses one. The first Hello is due at once, and a later one after
  /// `retry` and a random delay of up to half of it, which `seed` determines.
  Registration(std::string name, Duration retry, uint64_t seed) : name_(std::move(name)), retry_(retry), rng_(seed) {}

  // ---- looking ----
  bool is_member() const { return state_ == State::member; }
  const std::string& name() const { return name_; }
  /// The instance of the last conductor that welcomed this node.
  const InstanceId& conductor() const { return conductor_; }
  /// Whether the last conductor serves tenants. One tenant may not see the counts of another.
  bool has_tenants() const { return has_tenants_; }
  /// The conductor's last refusal (layout mismatch, name taken) since a Welcome; null = none.
  const wire::Refused* refused() const { return refused_ ? &*refused_ : nullptr; }
  /// The time at which it arrived.
  TimePoint refused_at() const { return refused_at_; }
  /// Silence after which either side considers the other lost.
  Duration dead_after() const { return dead_after_; }
  /// Whether the node is a member under another conductor than this one.
  bool is_member_elsewhere(const InstanceId& conductor) const { return is_member() && conductor != conductor_; }
  bool has_left() const { return left_; }
  /// The time since the first Welcome of any conductor; 0 before it.
  Duration member_for(TimePoint now) const { return welcomed_at_ == kNever ? Duration{} : now - welcomed_at_; }
  TimePoint next_wakeup() const;

  // ---- events ----
  /// A message that counts has arrived from the conductor.
  void heard(TimePoint now) { heard_at_ = now; }
  /// No message was read for `time`, up to now (HostStalled).
  void stalled(Duration time, TimePoint now) { heard_at_ = std::min(heard_at_ + time, now); }
  /// Registers the node. True when another conductor than the last one welcomed it. A member under another conductor
  /// must be lost() first.
  bool welcomed(const InstanceId& conductor, const wire::Welcome& welcome, TimePoint now);
  void refused_with(const wire::Refused& refused, TimePoint now) { refused_ = refused, refused_at_ = now; }
  /// The registration is over. The next Hello is due after a random delay.
  void lost(TimePoint now);
  /// The node leaves the cluster for good.
  void leave();

  // ---- what is due ----
  bool is_silent(TimePoint now) const { return is_member() && now - heard_at_ > dead_after_; }
  bool hello_due(TimePoint now) const { return !is_member() && !left_ && now >= hello_at_; }
  /// A Hello was sent.
  void asked(TimePoint now);
  bool beat_due(TimePoint now) const { return is_member() && now >= beat_at_; }
  /// A heartbeat was sent.
  void beaten(TimePoint now);
  /// The next heartbeat is due now, because its content has changed.
  void beat_soon(TimePoint now);

 private:
  enum class State : uint8_t { absent, asked, member };

  std::string name_;
  Duration retry_;
  Rng rng_;
  State state_ = State::absent;
  InstanceId conductor_;
  TimePoint hello_at_{};  // time of the next Hello while absent or asked
  TimePoint beat_at_ = kNever;
  TimePoint heard_at_{};
  TimePoint welcomed_at_ = kNever;  // the first Welcome
  Duration beat_every_ = 200ms, dead_after_ = 3s;
  bool has_tenants_ = false;
  bool left_ = false;
  std::optional<wire::Refused> refused_;
  TimePoint refused_at_ = kNever;
};

}  // namespace mc::node
