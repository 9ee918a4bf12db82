#include "door/replicas.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "door/replica_errors.h"
#include "door/replica_values.h"
#include "product/metric_names.h"

namespace mc::door {
namespace {

using node::ReplicaKeeper;
using node::SharedValue;
using node::ValueInfo;
using node::ValueKey;
using wire::ReplicaAnswer;
using wire::ReplicaCall;
using wire::ReplicaOp;
using wire::ReplicaSet;
using wire::ReplicaValue;

constexpr Duration kCallMax = 30s;  // of an offer, for which the other node reads the value
constexpr Duration kAskMax = 2s;    // of a call that moves no value
constexpr Duration kTick = 200ms;   // between looks at the members
constexpr size_t kPage = 256, kLackingMax = 65'536;

}  // namespace

struct Replicas::Spread {
  ValueKey key;
  SharedValue value;
  node::ValueTerms terms;
  ReplicaSet before;
  Members members;
  TimePoint until;
  std::vector<std::string> created;  // nodes that had no value of the key
};

Replicas::Replicas(StoredValues& values, ReplicaLink& link, const Clock& clock, const ReplicaKeeper::Options& options,
                   uint64_t value_bytes_max)
    : values_(values),
      link_(link),
      clock_(clock),
      value_bytes_max_(value_bytes_max),
      lent_(clock),
      removals_(clock),
      use_(clock),
      keeper_(options) {
  if (!values_.replicated({}, 1).empty()) use_.begin();
}

Replicas::~Replicas() {
  stop();
}

void Replicas::start() {
  MC_ASSERT(!upkeep_.joinable());
  offers_ = std::make_unique<DoorPool>(
      DoorPool::Options{.threads = 8, .running_bytes_max = LentValues::kBytesMax, .owner_share = 1});
  calls_ = std::make_unique<DoorPool>(DoorPool::Options{.threads = 4, .owner_share = 1});
  upkeep_ = std::thread([this] { run(); });
  link_.serve([this](const std::string& from, ReplicaCall call, ReplicaLink::Answer out) {
    handle(from, std::move(call), out);
  });
}

void Replicas::stop() {
  if (!upkeep_.joinable()) return;
  link_.serve({});
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  upkeep_.join();
  offers_->stop();
  calls_->stop();
}

// ---- calls to other nodes --------------------------------------------------------------------

/// `forced`: the call goes on without nodes that cannot be reached.
Result<Replicas::Members> Replicas::members(bool forced) const {
  Members out = link_.members();
  if (out.awaits_list && !forced)
    return user_error(err::kPeerUnreachable, "this node has no list of the other cache nodes yet", "key",
                      "send the call again");
  if (!out.self.empty()) return out;
  return user_error(err::kPeerUnreachable,
                    "this node is not a member of a cluster, so it has no other cache node to ask", "replicas",
                    "start a conductor, or put the value with one replica");
}

ReplicaLink::Answers Replicas::ask_all(std::span<const Node> nodes, const ReplicaCall& call, TimePoint until,
                                       const ReplicaLink::Suffices& suffices) {
  const bool moves_value = call.op == static_cast<uint32_t>(ReplicaOp::offer) || call.lend;
  Duration time = moves_value ? kCallMax : kAskMax;
  if (until != kNever) time = std::min(time, until - SystemClock::instance().now());
  Answers out;
  if (time > Duration{}) out = link_.call_all(nodes, call, time, suffices);
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i]) use_.note(nodes[i].instance, out[i]->has_begun);
  for (size_t i = out.size(); i < nodes.size(); ++i)
    out.emplace_back(
        user_error(err::kDeadlineExceeded, "the deadline passed before " + nodes[i].name + " was asked", "key"));
  MC_ASSERT_EQ(out.size(), nodes.size());
  return out;
}

Result<ReplicaAnswer> Replicas::ask(const Node& node, const ReplicaCall& call, TimePoint until) {
  return std::move(ask_all({&node, 1}, call, until).front());
}

/// One of the nodes that have the value with replicas. A node that does not answer is an error only where no other one
/// has the value.
Result<std::optional<Replicas::Elsewhere>> Replicas::look(const ValueKey& key, std::span<const Node> nodes,
                                                          TimePoint until) {
  const auto has_value = [this](const ReplicaAnswer& answer) {
    return answer.mc == 0 && !answer.value.set.is_single() && answer.value.bytes <= value_bytes_max_;
  };
  const Answers answers = ask_all(nodes, call_of(ReplicaOp::find, key), until, has_value);
  for (size_t i = 0; i < nodes.size(); ++i)
    if (answers[i] && has_value(*answers[i])) return std::optional(Elsewhere{nodes[i], answers[i]->value});
  for (const auto& answer : answers) MC_CHECK(answer);
  return std::optional<Elsewhere>();
}

/// The newest holders that any node has for the value of a key, and each other node that has such a value; none when no
/// value has replicas. A node that has just come back has the old holders alone. The version is also at least that of a
/// removal: the clocks of the nodes may differ, and a new value must not look older than the one that was removed.
Result<ReplicaSet> Replicas::standing(const ValueKey& key, const Members& members, bool forced, TimePoint until) {
  ReplicaSet newest;
  uint64_t removed = removals_.version_of(key);
  std::vector<std::string> having;
  const auto take = [&](const std::string& node, const ReplicaSet& set) {
    if (set.is_single()) return;
    having.push_back(node);
    if (std::pair(set.version, set.revision) > std::pair(newest.version, newest.revision)) newest = set;
  };
  if (const auto own = values_.find(key)) take(members.self, own->replicas);
  ReplicaCall find = call_of(ReplicaOp::find, key);
  find.begins = use_.has_begun();
  const Answers answers = ask_all(members.others, find, until);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!forced) MC_CHECK(answers[i]);
    if (!answers[i]) continue;
    const ReplicaSet& set = answers[i]->value.set;
    if (answers[i]->mc == 0) take(members.others[i].name, set);
    removed = std::max(removed, set.version);
  }
  newest.version = std::max(newest.version, removed);
  for (const std::string& node : having)
    if (!newest.has(node) && newest.holders.size() < wire::kReplicasMax) newest.holders.push_back(node);
  return newest;
}

Result<node::SharedValue> Replicas::read_bytes(const Node& node, uint64_t transfer, const ReplicaValue& value,
                                               TimePoint until) {
  if (value.bytes > value_bytes_max_)
    return user_error(err::kPeerGarbage, node.name + " offers a value of " + std::to_string(value.bytes) + " bytes",
                      "key");
  std::string bytes;
  ReplicaCall call;
  call.op = static_cast<uint32_t>(ReplicaOp::read);
  call.transfer = transfer;
  while (bytes.size() < value.bytes) {
    call.offset = bytes.size();
    MC_TRY(part, ask(node, call, until));
    if (part.mc != 0) return told(node.name, part);
    if (part.data.empty() || part.data.size() > value.bytes - bytes.size())
      return user_error(err::kPeerGarbage, node.name + " sent a part of " + std::to_string(part.data.size()) + " bytes",
                        "key");
    if (bytes.empty()) bytes.reserve(value.bytes);
    bytes.append(reinterpret_cast<const char*>(part.data.data()), part.data.size());
  }
  MC_ASSERT_EQ(bytes.size(), value.bytes);
  auto out = std::make_shared<const node::ValueBytes>(bytes);
  if (out->crc() == value.crc) return SharedValue(std::move(out));
  return user_error(err::kChecksum, "the bytes that " + node.name + " sent do not match the checksum of the value",
                    "key");
}

// ---- put -------------------------------------------------------------------------------------

/// The holders of a new value: those that the key's value has, then this node, then others by their order.
Result<ReplicaSet> Replicas::choose(const ValueKey& key, const node::ValueTerms& terms, const ReplicaSet& before,
                                    const Members& members) {
  const uint32_t least = terms.durability == node::Durability::d3 ? 2 : 1;
  ReplicaSet set;
  set.copies = std::max(terms.copies == 1 ? std::max(before.copies, least) : terms.copies, least);
  set.holders = before.holders;
  std::vector<std::string> gone;
  for (const std::string& holder : set.holders)
    if (holder != members.self && members.find(holder) == nullptr) gone.push_back(holder);
  if (!gone.empty())
    return away(gone, "wait until the node is back; or remove the value with mc-cache rm --force and put it again");
  const bool has_own = values_.find(key).has_value();
  const bool is_new = !set.has(members.self) && (has_own || set.holders.empty());
  if (is_new && set.holders.size() == wire::kReplicasMax)
    return user_error(err::kValueDiffers,
                      std::to_string(wire::kReplicasMax) + " other nodes have the key's value, and " + members.self +
                          " has another one without replicas",
                      "key", "mc-cache rm " + members.self + " KEY removes its value; then put again");
  if (is_new) set.holders.push_back(members.self);
  std::vector<std::string> others;
  for (const Node& node : members.others)
    if (!set.has(node.name)) others.push_back(node.name);
  std::vector<std::string> there{members.self};
  for (const Node& node : members.others) there.push_back(node.name);
  for (std::string& node : node::replica_order(key, std::move(others)))
    if (set.holders.size() < set.copies) set.holders.push_back(std::move(node));
  if (set.holders.size() < set.copies)
    return user_error(err::kNotDurable,
                      std::to_string(set.copies) + " replicas need " + std::to_string(set.copies) +
                          " cache nodes, and there " + (there.size() == 1 ? "is 1: " : "are ") +
                          (there.size() == 1 ? "" : std::to_string(there.size()) + ": ") + names(there),
                      "replicas", "start more cache nodes, or ask for fewer replicas");
  const std::lock_guard lock(mutex_);
  // Two nodes that put in one millisecond make different versions.
  const uint32_t mark = crc32c(std::as_bytes(std::span(members.self))) & UINT16_MAX;
  const uint64_t time = static_cast<uint64_t>(clock_.unix_ms()) << 16 | mark;
  last_version_ = std::max({last_version_ + 1, time, before.version + 1});
  set.version = last_version_;
  MC_ASSERT(wire::is_plausible(set));
  return set;
}

Result<Replicas::PutResult> Replicas::put(const ValueKey& key, const SharedValue& value, node::ValueTerms terms,
                                          TimePoint until, StoredValues::Later* later) {
  MC_ASSERT(value != nullptr);
  const bool asks_for_replicas = terms.copies > 1 || terms.durability == node::Durability::d3;
  if (terms.copies > wire::kReplicasMax)
    return user_error(err::kInvalidField, "replicas is at most " + std::to_string(wire::kReplicasMax), "replicas");
  MC_TRY(there, members(!asks_for_replicas));
  if (asks_for_replicas) use_.begin();
  MC_TRY(before, standing(key, there, !asks_for_replicas, until));
  if (!asks_for_replicas && before.is_single()) return values_.put(key, value, terms, later, until);
  MC_TRY(set, choose(key, terms, before, there));
  if (terms.durability == node::Durability::d1) terms.durability = node::Durability::d2;
  if (terms.durability == node::Durability::d2 && set.holders.size() > 1) terms.durability = node::Durability::d3;
  terms.replicas = set;
  Spread put{key, value, terms, before, std::move(there), until, {}};
  auto done = spread(put);
  if (!done) undo(put);
  return done;
}

/// Stores the value here and on the other holders. All of them have it when it returns without an error.
Result<Replicas::PutResult> Replicas::spread(Spread& put) {
  const ReplicaSet& set = put.terms.replicas;
  MC_TRY(loan, lent_.lend(put.value));
  bool has_replaced = false, has_created = false;
  if (set.has(put.members.self)) {
    MC_TRY(done, values_.put(put.key, put.value, put.terms, nullptr, put.until));
    if (done == PutResult::unchanged) MC_CHECK(values_.set_replicas(put.key, set, put.until));
    if (done == PutResult::created) put.created.push_back(put.members.self);
    has_created = done == PutResult::created, has_replaced = done == PutResult::replaced;
  }
  ReplicaCall call = call_of(ReplicaOp::offer, put.key);
  call.value = {.bytes = put.value->size(), .crc = put.value->crc(), .set = set};
  call.value.durable = put.terms.durability > node::Durability::d0;
  if (put.terms.ttl < Duration::max())
    call.value.ttl_ms = static_cast<uint64_t>(std::max<int64_t>(put.terms.ttl / 1ms, 1));
  call.value.pin_ms = static_cast<uint64_t>(put.terms.pin / 1ms);
  call.replaces = put.terms.replaces;
  call.transfer = loan.number();
  Result<void> outcome;
  for (const std::string& holder : set.holders) {
    if (holder == put.members.self) continue;
    const Node* node = put.members.find(holder);
    MC_ASSERT(node != nullptr);  // choose() takes no node that is away
    const auto answer = ask(*node, call, put.until);
    if (!answer || answer->mc != 0) {
      outcome = answer ? told(holder, *answer) : answer.error();
      if (!answer) put.created.push_back(holder);  // it may have the value or not
      break;
    }
    has_created = has_created || (answer->changed && !answer->replaced);
    has_replaced = has_replaced || answer->replaced;
    if (answer->changed && !answer->replaced) put.created.push_back(holder);
  }
  if (!outcome) return outcome.error();
  return has_replaced                            ? PutResult::replaced
         : has_created && put.before.is_single() ? PutResult::created
                                                 : PutResult::unchanged;
}

/// Takes a value back from nodes that had none of its key.
void Replicas::undo(const Spread& put) {
  if (!put.before.is_single()) return;  // one more replica of a value that stays does no harm
  const TimePoint until = std::max(put.until, SystemClock::instance().now() + kAskMax);  // also after the deadline
  ReplicaCall call = call_of(ReplicaOp::remove, put.key);
  call.value.set = put.terms.replicas;
  std::vector<Node> nodes;
  for (const std::string& holder : put.created) {
    if (holder == put.members.self) {
      (void)values_.remove(put.key, until, put.terms.replicas.version);
      continue;
    }
    const Node* node = put.members.find(holder);
    MC_ASSERT(node != nullptr);
    nodes.push_back(*node);
  }
  (void)ask_all(nodes, call, until);
}

// ---- get, remove, pin ------------------------------------------------------------------------

Result<Replicas::Copied> Replicas::read(const ValueKey& key, const Node& node, TimePoint until) {
  ReplicaCall find = call_of(ReplicaOp::find, key);
  find.lend = true;
  MC_TRY(lent, ask(node, find, until));
  if (lent.mc != 0) return told(node.name, lent);
  if (lent.transfer == 0) return user_error(err::kNotFound, node.name + " has the value without replicas", "key");
  auto bytes = read_bytes(node, lent.transfer, lent.value, until);
  ReplicaCall release;
  release.op = static_cast<uint32_t>(ReplicaOp::release);
  release.transfer = lent.transfer;
  (void)ask(node, release, until);
  MC_CHECK(bytes);
  return Copied{.bytes = std::move(*bytes), .value = std::move(lent.value)};
}

Result<Replicas::Found> Replicas::get(const ValueKey& key, TimePoint until) {
  MC_TRY(there, members());
  std::vector<Node> nodes = there.others;
  std::optional<Error> failure;
  for (;;) {
    const auto place = look(key, nodes, until);
    if (!failure) MC_CHECK(place);
    if (!place || !*place) return failure ? *failure : nowhere(key);
    const Node node = (*place)->node;
    auto copied = read(key, node, until);
    if (!copied) {  // it has lost the value meanwhile, or cannot give it: another node may
      failure = copied.error();
      std::erase_if(nodes, [&](const Node& one) { return one.name == node.name; });
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      ++counts_.fetched;
    }
    if (copied->value.set.has(there.self)) (void)store(key, copied->bytes, copied->value, false);
    return Found{.value = std::move(copied->bytes), .info = info_of(key, copied->value)};
  }
}

Result<ValueInfo> Replicas::find(const ValueKey& key, TimePoint until) {
  MC_TRY(there, members());
  MC_TRY(place, look(key, there.others, until));
  return place ? Result<ValueInfo>(info_of(key, place->value)) : nowhere(key);
}

Result<void> Replicas::remove(const ValueKey& key, bool forced, TimePoint until) {
  MC_TRY(there, members(forced));
  MC_TRY(set, standing(key, there, forced, until));
  if (set.is_single()) return values_.remove(key, until);
  std::vector<std::string> gone;
  std::vector<Node> nodes;
  for (const std::string& holder : set.holders) {
    if (const Node* node = there.find(holder))
      nodes.push_back(*node);
    else if (holder != there.self)
      gone.push_back(holder);
  }
  if (!gone.empty() && !forced)
    return away(gone, "wait until the node is back, or remove the value elsewhere with mc-cache rm --force");
  ReplicaCall call = call_of(ReplicaOp::remove, key);
  call.value.set = set;
  removals_.note(key, set.version);
  const Answers answers = ask_all(nodes, call, until);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!forced) MC_CHECK(answers[i]);
    if (answers[i] && answers[i]->mc != 0 && answers[i]->mc != err::kNotFound) return told(nodes[i].name, *answers[i]);
  }
  const auto removed = values_.remove(key, until, set.version);
  return removed || removed.error().mc == err::kNotFound ? Result<void>() : removed;
}

Result<void> Replicas::pin(const ValueKey& key, Duration time, TimePoint until) {
  MC_TRY(there, members());
  MC_TRY(set, standing(key, there, true, until));
  if (set.is_single()) return values_.pin(key, time, until);
  ReplicaCall call = call_of(ReplicaOp::pin, key);
  call.value.set = set;
  call.value.pin_ms = static_cast<uint64_t>(time / 1ms);
  // A holder that is away, or has lost its replica, evicts it at worst. The upkeep makes it again, with the pin.
  std::vector<Node> nodes;
  for (const std::string& holder : set.holders)
    if (const Node* node = there.find(holder)) nodes.push_back(*node);
  bool is_pinned = false;
  const Answers answers = ask_all(nodes, call, until);
  for (size_t i = 0; i < answers.size(); ++i) {
    MC_CHECK(answers[i]);
    if (answers[i]->mc != 0 && answers[i]->mc != err::kNotFound) return told(nodes[i].name, *answers[i]);
    is_pinned = is_pinned || answers[i]->mc == 0;
  }
  if (set.has(there.self)) {
    const auto own = values_.pin(key, time, until);
    if (!own && own.error().mc != err::kNotFound) return own;
    is_pinned = is_pinned || own;
  }
  return is_pinned ? Result<void>() : nowhere(key);
}

Result<void> Replicas::store(const ValueKey& key, const SharedValue& value, const ReplicaValue& terms, bool replaces) {
  MC_TRY(done, values_.put(key, value, terms_of(terms, replaces)));
  if (removals_.has(key, terms.set.version)) return values_.remove(key, kNever, terms.set.version);
  return done == PutResult::unchanged ? values_.set_replicas(key, terms.set) : Result<void>();
}

// ---- calls of other nodes --------------------------------------------------------------------

void Replicas::handle(const std::string& from, ReplicaCall call, const ReplicaLink::Answer& out) {
  const bool is_offer = call.op == static_cast<uint32_t>(ReplicaOp::offer);
  DoorPool::Job job;
  job.owner = from;
  job.bytes = is_offer ? std::min<size_t>(call.value.bytes, value_bytes_max_) : 0;
  job.run = [this, from, call = std::move(call), out](const DoorPool::TicketPtr& ticket) {
    ReplicaAnswer done;
    try {
      const FailsAlone alone;
      done = answer(from, call);
    } catch (const std::bad_alloc&) {
      done = {.mc = err::kNotEnoughMemory, .what = "there is not enough memory for this call"};
      done.has_begun = use_.has_begun();
    }
    if (ticket->settle()) out(wire::encode(done));
  };
  const auto refuse = [out, has_begun = use_.has_begun()] {
    ReplicaAnswer full{.mc = err::kQueueFull, .what = "too many calls of other nodes wait"};
    full.has_begun = has_begun;
    out(wire::encode(full));
  };
  job.end = [refuse](DoorPool::End) { refuse(); };
  if ((is_offer ? offers_ : calls_)->submit(std::move(job)) != DoorPool::Admission::taken) refuse();
}

ReplicaAnswer Replicas::answer(const std::string& from, const ReplicaCall& call) {
  ReplicaAnswer out;
  const ValueKey key{call.tenant, call.name};
  if (call.begins || call.op == static_cast<uint32_t>(ReplicaOp::offer)) use_.begin();
  out.has_begun = use_.has_begun();
  Result<void> done;
  switch (static_cast<ReplicaOp>(call.op)) {
    case ReplicaOp::offer: done = take_offer(from, call, out); break;
    case ReplicaOp::read: done = read_part(call, out); break;
    case ReplicaOp::find: done = give(call, out); break;
    case ReplicaOp::release: lent_.end(call.transfer); break;
    case ReplicaOp::remove:
      removals_.note(key, call.value.set.version);
      done = values_.remove(key, kNever, call.value.set.version);
      break;
    case ReplicaOp::pin: done = values_.pin(key, time_of(call.value.pin_ms)); break;
  }
  if (!done)
    out.mc = static_cast<uint32_t>(as_user_error(err::kInternal, done.error()).mc), out.what = done.error().what;
  return out;
}

Result<void> Replicas::take_offer(const std::string& from, const ReplicaCall& call, ReplicaAnswer& out) {
  const ValueKey key{call.tenant, call.name};
  MC_CHECK(node::check_value_key(key.name));
  if (call.value.set.is_single()) return user_error(err::kInvalidField, "an offer without holders", "set");
  const auto own = values_.find(key);
  if (own) out.value = value_of(*own);
  const ReplicaSet held = own ? own->replicas : ReplicaSet{};
  if (own && held.version == call.value.set.version && own->crc == call.value.crc && own->bytes == call.value.bytes &&
      (own->copy || !call.value.durable))
    return held.revision < call.value.set.revision ? values_.set_replicas(key, call.value.set) : Result<void>();
  if (held.version > call.value.set.version) return user_error(err::kValueDiffers, "the key has a newer value", "key");
  if (own && !call.replaces && (own->crc != call.value.crc || own->bytes != call.value.bytes) && held.is_single())
    return user_error(err::kValueDiffers, "the key has another value on this node", "key",
                      "ask for the replacement, or remove the value first");
  if (removals_.has(key, call.value.set.version)) return user_error(err::kValueDiffers, "the value was removed", "key");
  if (call.transfer == 0) return user_error(err::kNotFound, "the value is not there", "key");
  const Members there = link_.members();
  const Node* node = there.find(from);
  if (node == nullptr) return user_error(err::kPeerUnreachable, from + " is no cache node", "key");
  MC_TRY(value, read_bytes(*node, call.transfer, call.value, kNever));
  MC_TRY(done, values_.put(key, value, terms_of(call.value, call.replaces)));
  // A removal that comes later finds the value; one that came meanwhile did not.
  if (removals_.has(key, call.value.set.version)) {
    (void)values_.remove(key, kNever, call.value.set.version);
    return user_error(err::kValueDiffers, "the value was removed meanwhile", "key");
  }
  if (done == PutResult::unchanged) return values_.set_replicas(key, call.value.set);
  out.changed = true;
  out.replaced = done == PutResult::replaced;
  return {};
}

Result<void> Replicas::give(const ReplicaCall& call, ReplicaAnswer& out) {
  const ValueKey key{call.tenant, call.name};
  const uint64_t removed = removals_.version_of(key);
  out.value.set.version = removed;
  if (!call.lend) {
    MC_TRY(info, values_.find(key));
    out.value = value_of(info);
    if (info.replicas.is_single()) out.value.set.version = removed;
    return {};
  }
  MC_TRY(found, values_.get(key, {}));
  out.value = value_of(found.info);
  if (found.info.replicas.is_single()) return {};
  MC_TRY(loan, lent_.lend(std::move(found.value)));
  out.transfer = std::move(loan).keep();
  return {};
}

Result<void> Replicas::read_part(const ReplicaCall& call, ReplicaAnswer& out) {
  const SharedValue value = lent_.find(call.transfer);
  if (!value || call.offset > value->size())
    return user_error(err::kNotFound, "nothing is lent under this number", "key");
  const std::string_view part = value->view().substr(static_cast<size_t>(call.offset), wire::kReplicaPartBytes);
  out.data.resize(part.size());
  if (!part.empty()) std::memcpy(out.data.data(), part.data(), part.size());
  return {};
}

// ---- upkeep ----------------------------------------------------------------------------------

void Replicas::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    try {
      const FailsAlone alone;
      tend();
    } catch (const std::bad_alloc&) {
      log_warn("a round over the replicas of values was left: not enough memory");
      const std::lock_guard again(mutex_);
      keeper_.set_incomplete();
      keeper_.end_round(clock_.now());
    }
    lock.lock();
    changed_.wait_for(lock, kTick, [this] { return stopping_; });
  }
}

void Replicas::tend() {
  lent_.expire();
  const Members there = link_.members();
  {
    const std::lock_guard lock(mutex_);
    keeper_.set_members(there.self, there.others, clock_.now());
    if (!keeper_.wants_round(clock_.now())) return;
    keeper_.begin_round(clock_.now());
    ++round_;
  }
  ValueKey after;
  for (;;) {
    const std::vector<ValueKey> page = values_.replicated(after, kPage);
    for (const ValueKey& key : page) {
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
      }
      tend_value(key);
    }
    if (page.size() < kPage) break;
    after = page.back();
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(lacking_, [this](const auto& lacking) { return lacking.second.round != round_; });  // not here any more
  keeper_.end_round(clock_.now());
}

/// Makes the lost replicas of one value again.
void Replicas::tend_value(const ValueKey& key) {
  const auto info = values_.find(key);
  if (!info || info->replicas.is_single()) return;
  ReplicaSet set = info->replicas;
  ReplicaKeeper::Work work;
  {
    const std::lock_guard lock(mutex_);
    work = keeper_.work(key, set, info->copy.has_value(), clock_.now());
  }
  for (const std::string& gone : work.drop) std::erase(set.holders, gone);
  for (const std::string& node : work.add) set.holders.push_back(node);
  if (set != info->replicas) ++set.revision;
  std::vector<std::string> lacking;
  std::vector<std::string> failed;
  for (const std::string& node : work.add)
    if (!offer_again(key, *info, set, node)) failed.push_back(node);
  for (const std::string& node : failed) std::erase(set.holders, node);
  if (!failed.empty()) ++set.revision;
  if (set.holders == info->replicas.holders) set = info->replicas;  // no new holder took it
  for (const std::string& node : work.confirm)
    if (!offer_again(key, *info, set, node)) lacking.push_back(node);
  if (set != info->replicas)
    if (const auto done = values_.set_replicas(key, set); !done && done.error().mc != err::kNotFound)
      log_warn("the new holders of a value were not noted", {{"why", done.error().what}});
  set_lacking(key, std::move(lacking));
}

void Replicas::set_lacking(const ValueKey& key, std::vector<std::string> nodes) {
  const std::lock_guard lock(mutex_);
  if (nodes.empty())
    lacking_.erase(key);
  else if (lacking_.size() < kLackingMax || lacking_.contains(key))
    lacking_[key] = {.nodes = std::move(nodes), .round = round_};
}

/// Asks a holder whether it has the value, and gives it the bytes when it lacks them. False: it does not have the
/// value.
bool Replicas::offer_again(const ValueKey& key, const ValueInfo& info, const ReplicaSet& set, const std::string& name) {
  const Members there = link_.members();
  const Node* node = there.find(name);
  ReplicaCall call = call_of(ReplicaOp::offer, key);
  call.value = value_of(info);
  call.value.set = set;
  call.replaces = true;  // an older version of the value
  const auto give_up = [&](const std::string& why, bool is_silent) {
    const std::lock_guard lock(mutex_);
    if (is_silent) keeper_.fail(name);
    keeper_.set_incomplete();
    ++counts_.failed;
    log_debug("a replica of a value was not made", {{"node", name}, {"key", key.name}, {"why", why}});
    return false;
  };
  {
    const std::lock_guard lock(mutex_);
    if (keeper_.has_failed(name)) return false;
  }
  if (node == nullptr) return give_up("it has left the cluster", true);
  auto answer = ask(*node, call, kNever);
  if (!answer) return give_up(answer.error().what, true);
  if (answer->mc == err::kNotFound) {
    auto found = values_.get(key, {});
    if (!found || found->info.replicas.version != set.version) return give_up("the value is not here any more", false);
    const auto loan = lent_.lend(std::move(found->value));
    if (!loan) return give_up(loan.error().what, false);
    call.transfer = loan->number();
    answer = ask(*node, call, kNever);
    if (!answer) return give_up(answer.error().what, true);
    const std::lock_guard lock(mutex_);
    if (answer->mc == 0) ++counts_.made;
  }
  if (answer->mc == 0 && answer->value.set.revision <= set.revision) return true;
  if (answer->value.set.version > set.version || answer->mc == 0) {
    give_way(key, info, *node, *answer);
    return true;
  }
  return give_up(answer->what, false);
}

/// The other node has a newer value, or newer holders of this one.
void Replicas::give_way(const ValueKey& key, const ValueInfo& info, const Node& node, const ReplicaAnswer& answer) {
  const std::string self = link_.members().self;
  const ReplicaSet& newer = answer.value.set;
  Result<void> done;
  if (!newer.has(self)) {
    done = values_.remove(key, kNever, info.replicas.version);
  } else if (newer.version == info.replicas.version) {
    done = values_.set_replicas(key, newer);
  } else {
    const auto copied = read(key, node, kNever);
    if (copied) done = store(key, copied->bytes, copied->value, true);
  }
  if (!done && done.error().mc != err::kNotFound)
    log_warn("an old replica of a value stays", {{"key", key.name}, {"why", done.error().what}});
}

uint32_t Replicas::missing(const ValueKey& key, const ReplicaSet& set) const {
  const Members there = link_.members();
  const std::lock_guard lock(mutex_);
  const auto lacking = lacking_.find(key);
  const auto lacks = [&](const std::string& holder) {
    return lacking != lacking_.end() && std::ranges::find(lacking->second.nodes, holder) != lacking->second.nodes.end();
  };
  uint32_t have = 0;
  for (const std::string& holder : set.holders)
    have += (holder == there.self || there.find(holder) != nullptr) && !lacks(holder);
  return set.copies - std::min(set.copies, have);
}

void Replicas::update(Metrics& metrics) {
  const std::lock_guard lock(mutex_);
  const auto count = [](metric::Counter counter, uint64_t total, uint64_t& before) {
    counter.add(static_cast<double>(total - std::exchange(before, total)));
  };
  count(metrics.counter(metric::kStoreReplicas, {"made"}), counts_.made, reported_.made);
  count(metrics.counter(metric::kStoreReplicas, {"failed"}), counts_.failed, reported_.failed);
  count(metrics.counter(metric::kStoreReplicas, {"fetched"}), counts_.fetched, reported_.fetched);
}

}  // namespace mc::door
