#include "node/lease_carrier.h"

#include <algorithm>

#include "base/assert.h"
#include "wire/codec.h"

namespace mc::node {
namespace {

template <class Map>
void erase_instance(Map& map, const InstanceId& instance) {
  std::erase_if(map, [&](const auto& entry) { return entry.first.first == instance; });
}

template <class T>
std::optional<T> next_of(std::deque<T>& queue) {
  if (queue.empty()) return std::nullopt;
  std::optional<T> out = std::move(queue.front());
  queue.pop_front();
  return out;
}

}  // namespace

bool LeaseCarrier::send(const Send& send, TimePoint now) {
  if (const auto* request = std::get_if<wire::LeaseRequest>(&send.message)) {
    keep(began_, {send.instance, request->lease}, now);
    const bool taken = send_request(send, *request, now);
    ++(taken ? stats_.by_channel : stats_.by_control);
    return taken;
  }
  if (const auto* release = std::get_if<wire::LeaseRelease>(&send.message)) return send_release(send, *release, now);
  if (const auto* grant = std::get_if<wire::LeaseGrant>(&send.message)) return send_grant(send, *grant, now);
  if (const auto* renew = std::get_if<wire::LeaseRenew>(&send.message)) return send_renewal(send, *renew, now);
  if (const auto* renewed = std::get_if<wire::LeaseRenewed>(&send.message)) return send_renewed(send, *renewed, now);
  return false;
}

bool LeaseCarrier::send_request(const Send& send, const wire::LeaseRequest& request, TimePoint now) {
  const Key lease{send.instance, request.lease};
  if (request.wait_ms > 0 || leasing_.contains(lease)) return false;
  const uint64_t number = lines_.call(send.instance, wire::LeaseMethod::lease, wire::encode(send.message), now);
  if (number == 0) return false;
  const bool fresh = calls_.try_emplace({send.instance, number}, Call{send}).second;
  MC_ASSERT(fresh);
  leasing_[lease] = number;
  return true;
}

bool LeaseCarrier::send_release(const Send& send, const wire::LeaseRelease& release, TimePoint now) {
  const Key lease{send.instance, release.lease};
  began_.erase(lease);
  if (const auto open = leasing_.find(lease); open != leasing_.end()) {
    calls_.at({send.instance, open->second}).released = true;
    return true;
  }
  if (granted_.erase(lease) == 0) return false;
  const uint64_t number = lines_.call(send.instance, wire::LeaseMethod::release, wire::encode(send.message), now);
  if (number == 0) return false;
  const bool fresh = calls_.try_emplace({send.instance, number}, Call{send}).second;
  MC_ASSERT(fresh);
  return true;
}

bool LeaseCarrier::send_grant(const Send& send, const wire::LeaseGrant& grant, TimePoint now) {
  const auto asked = asked_.find({send.instance, grant.lease});
  if (asked == asked_.end()) return false;
  const uint64_t number = asked->second.number;
  asked_.erase(asked);
  if (lines_.answer(send.instance, number, wire::LeaseStatus::done, wire::encode(send.message), now)) return true;
  ++stats_.late;
  const bool fits = lines_.answer(send.instance, number, wire::LeaseStatus::by_message, {}, now);
  MC_ASSERT(fits);
  return false;
}

bool LeaseCarrier::send_renewal(const Send& send, const wire::LeaseRenew& renew, TimePoint now) {
  const bool is_open = std::ranges::any_of(calls_, [&](const auto& call) {
    const auto* other = std::get_if<wire::LeaseRenew>(&call.second.message.message);
    return other && other->lease == renew.lease && call.first.first == send.instance;
  });
  if (is_open) return false;
  const uint64_t number = lines_.call(send.instance, wire::LeaseMethod::renew, wire::encode(send.message), now);
  if (number == 0) return false;
  const bool fresh = calls_.try_emplace({send.instance, number}, Call{send}).second;
  MC_ASSERT(fresh);
  return true;
}

bool LeaseCarrier::send_renewed(const Send& send, const wire::LeaseRenewed& renewed, TimePoint now) {
  ++(renewed.ttl_ms > 0 ? stats_.renewals_granted : stats_.renewals_refused);
  const auto asked = renewing_.find({send.instance, renewed.lease});
  if (asked == renewing_.end() || asked->second.round != renewed.round) return false;  // the other came by control
  const uint64_t number = asked->second.number;
  renewing_.erase(asked);
  const bool fits = lines_.answer(send.instance, number, wire::LeaseStatus::done, wire::encode(send.message), now);
  MC_ASSERT(fits);
  return true;
}

void LeaseCarrier::look_up(const Lookup& lookup, TimePoint now) {
  MC_ASSERT(!lookup.hashes.empty() && lookup.hashes.size() <= wire::kLookupBlocksMax);
  ++stats_.lookups_asked;
  const Looking looking{lookup.lookup, lookup.hashes.size()};
  const auto payload = wire::encode_lookup(lookup.hashes);
  const uint64_t number = lines_.call(lookup.instance, wire::LeaseMethod::lookup, payload, now);
  if (number == 0) return end_lookup(looking, Code::busy, 0, {});
  const bool fresh = lookups_.try_emplace({lookup.instance, number}, looking).second;
  MC_ASSERT(fresh);
}

void LeaseCarrier::touch(const Touch& touch, TimePoint now) {
  MC_ASSERT(!touch.hashes.empty() && touch.hashes.size() <= wire::kLookupBlocksMax);
  // Nobody waits for the end of the call.
  (void)lines_.call(touch.instance, wire::LeaseMethod::touch, wire::encode_lookup(touch.hashes), now);
}

void LeaseCarrier::end_lookup(const Looking& looking, Code code, uint16_t status, std::span<const uint8_t> payload) {
  LookedUp answer{looking.lookup, code, {}};
  if (code == Code::ok && status != static_cast<uint16_t>(wire::LeaseStatus::done)) answer.code = Code::unsupported;
  if (answer.code == Code::ok) {
    auto held = wire::decode_held(payload, looking.blocks);
    if (held)
      answer.held = std::move(*held);
    else
      answer.code = held.error().code;
  }
  stats_.lookups_failed += answer.code != Code::ok;
  answered_.push_back(std::move(answer));
}

void LeaseCarrier::heard(const Received& message, TimePoint now) {
  if (const auto* grant = std::get_if<wire::LeaseGrant>(&message.message)) {
    note_time({message.instance, grant->lease}, false, now);
  } else if (const auto* request = std::get_if<wire::LeaseRequest>(&message.message)) {
    // The reader no longer waits for its call, so the grant goes the way of this request.
    const auto asked = asked_.find({message.instance, request->lease});
    if (asked == asked_.end()) return;
    (void)lines_.answer(message.instance, asked->second.number, wire::LeaseStatus::by_message, {}, now);
    asked_.erase(asked);
  }
}

void LeaseCarrier::on_answer(const InstanceId& holder, uint64_t number, Code code, uint16_t status,
                             std::span<const uint8_t> payload, TimePoint now) {
  if (const auto lookup = lookups_.find({holder, number}); lookup != lookups_.end()) {
    const Looking looking = lookup->second;
    lookups_.erase(lookup);
    return end_lookup(looking, code, status, payload);
  }
  const auto at = calls_.find({holder, number});
  if (at == calls_.end()) return;
  Call call = std::move(at->second);
  calls_.erase(at);
  const auto* request = std::get_if<wire::LeaseRequest>(&call.message.message);
  if (request) leasing_.erase({holder, request->lease});
  const bool comes_by_message = status == static_cast<uint16_t>(wire::LeaseStatus::by_message);
  const bool done = status == static_cast<uint16_t>(wire::LeaseStatus::done);
  const auto* renew = std::get_if<wire::LeaseRenew>(&call.message.message);
  if (code != Code::ok || (!done && !((request || renew) && comes_by_message))) return fail(std::move(call));
  if (renew && done && !take_renewed(call, *renew, payload)) return fail(std::move(call));
  if (!request) return;
  if (done && !take_grant(call, *request, payload, now)) return fail(std::move(call));
  if (!call.released) return;
  const Send release{call.message.to, holder, wire::LeaseRelease{request->lease}};
  if (!send_release(release, *std::get_if<wire::LeaseRelease>(&release.message), now)) fallen_.push_back(release);
}

bool LeaseCarrier::take_grant(const Call& call, const wire::LeaseRequest& request, std::span<const uint8_t> payload,
                              TimePoint now) {
  auto message = wire::decode(wire::LeaseGrant::kType, payload);
  const auto* grant = message ? std::get_if<wire::LeaseGrant>(&*message) : nullptr;
  if (!grant || grant->lease != request.lease) return false;
  const Key lease{call.message.instance, request.lease};
  if (!grant->blocks.empty()) keep(granted_, lease, now);
  if (call.released) return true;
  note_time(lease, true, now);
  received_.push_back({call.message.to, call.message.instance, std::move(*message)});
  return true;
}

/// Whether the call brought the answer to its renewal.
bool LeaseCarrier::take_renewed(const Call& call, const wire::LeaseRenew& renew, std::span<const uint8_t> payload) {
  auto message = wire::decode(wire::LeaseRenewed::kType, payload);
  const auto* renewed = message ? std::get_if<wire::LeaseRenewed>(&*message) : nullptr;
  if (!renewed || renewed->lease != renew.lease || renewed->round != renew.round) return false;
  received_.push_back({call.message.to, call.message.instance, std::move(*message)});
  return true;
}

/// Repeats the message by control. Of a request that the reader has given up, the holder gets the release alone.
void LeaseCarrier::fail(Call call) {
  ++stats_.repeated;
  const auto* request = std::get_if<wire::LeaseRequest>(&call.message.message);
  if (request && call.released) call.message.message = wire::LeaseRelease{request->lease};
  fallen_.push_back(std::move(call.message));
}

void LeaseCarrier::calls_lost(const InstanceId& holder, TimePoint now) {
  std::vector<uint64_t> numbers;
  const auto add = [&](const auto& open) {
    for (auto at = open.lower_bound({holder, 0}); at != open.end() && at->first.first == holder; ++at)
      numbers.push_back(at->first.second);
  };
  add(calls_), add(lookups_);
  for (const uint64_t number : numbers) on_answer(holder, number, Code::peer_lost, 0, {}, now);
}

void LeaseCarrier::refuse(const InstanceId& reader, uint64_t number, TimePoint now) {
  ++stats_.refused;
  (void)lines_.answer(reader, number, wire::LeaseStatus::refused, {}, now);
}

void LeaseCarrier::on_request(const NodeId& name, const InstanceId& reader, uint64_t number, uint16_t method,
                              std::span<const uint8_t> payload, TimePoint now) {
  if (method == static_cast<uint16_t>(wire::LeaseMethod::lease)) {
    auto message = wire::decode(wire::LeaseRequest::kType, payload);
    const auto* request = message ? std::get_if<wire::LeaseRequest>(&*message) : nullptr;
    if (!request || !asked_.try_emplace({reader, request->lease}, Asked{number, now}).second)
      return refuse(reader, number, now);
    ++stats_.served;
    received_.push_back({name, reader, std::move(*message)});
  } else if (method == static_cast<uint16_t>(wire::LeaseMethod::release)) {
    auto message = wire::decode(wire::LeaseRelease::kType, payload);
    if (!message) return refuse(reader, number, now);
    received_.push_back({name, reader, std::move(*message)});
    (void)lines_.answer(reader, number, wire::LeaseStatus::done, {}, now);
  } else if (method == static_cast<uint16_t>(wire::LeaseMethod::renew)) {
    auto message = wire::decode(wire::LeaseRenew::kType, payload);
    const auto* renew = message ? std::get_if<wire::LeaseRenew>(&*message) : nullptr;
    if (!renew || !renewing_.try_emplace({reader, renew->lease}, Asked{number, now, renew->round}).second)
      return refuse(reader, number, now);
    received_.push_back({name, reader, std::move(*message)});
  } else if (method == static_cast<uint16_t>(wire::LeaseMethod::lookup)) {
    serve_lookup(reader, number, payload, now);
  } else if (method == static_cast<uint16_t>(wire::LeaseMethod::touch)) {
    auto hashes = wire::decode_lookup(payload);
    if (!hashes) return refuse(reader, number, now);
    ++stats_.touches_served;
    touched_.push_back({name, reader, std::move(*hashes)});
    (void)lines_.answer(reader, number, wire::LeaseStatus::done, {}, now);
  } else {
    refuse(reader, number, now);
  }
}

void LeaseCarrier::serve_lookup(const InstanceId& reader, uint64_t number, std::span<const uint8_t> payload,
                                TimePoint now) {
  const auto hashes = table_ ? wire::decode_lookup(payload) : Error{Code::unsupported, ""};
  if (!hashes) return refuse(reader, number, now);
  ++stats_.lookups_served;
  std::vector<uint8_t> held;
  for (const wire::HeldIn tiers : table_->find(*hashes)) held.push_back(static_cast<uint8_t>(tiers));
  const bool fits = lines_.answer(reader, number, wire::LeaseStatus::done, held, now);
  MC_ASSERT(fits);
}

void LeaseCarrier::on_time(TimePoint now) {
  const auto end_late = [&](const auto& entry) {
    if (now - entry.second.at < kAtOnce) return false;
    ++stats_.late;
    (void)lines_.answer(entry.first.first, entry.second.number, wire::LeaseStatus::by_message, {}, now);
    return true;
  };
  std::erase_if(asked_, end_late);
  std::erase_if(renewing_, end_late);
}

TimePoint LeaseCarrier::next_wakeup() const {
  TimePoint at = kNever;
  for (const auto& [lease, asked] : asked_) at = std::min(at, asked.at + kAtOnce);
  for (const auto& [lease, asked] : renewing_) at = std::min(at, asked.at + kAtOnce);
  return at;
}

void LeaseCarrier::requests_lost(const InstanceId& reader) {
  erase_instance(asked_, reader);
  erase_instance(renewing_, reader);
}

void LeaseCarrier::forget(const InstanceId& instance) {
  for (auto at = lookups_.lower_bound({instance, 0}); at != lookups_.end() && at->first.first == instance;) {
    end_lookup(at->second, Code::peer_lost, 0, {});
    at = lookups_.erase(at);
  }
  erase_instance(calls_, instance);
  erase_instance(leasing_, instance);
  erase_instance(granted_, instance);
  erase_instance(began_, instance);
  erase_instance(asked_, instance);
  erase_instance(renewing_, instance);
}

std::optional<Received> LeaseCarrier::next() {
  return next_of(received_);
}

std::optional<LookedUp> LeaseCarrier::next_answer() {
  return next_of(answered_);
}

std::optional<Touched> LeaseCarrier::next_touch() {
  return next_of(touched_);
}

void LeaseCarrier::note_time(const Key& lease, bool by_channel, TimePoint now) {
  const auto began = began_.find(lease);
  if (began == began_.end()) return;
  if (times_.size() < kTimesKept) times_.push_back({by_channel, to_seconds(now - began->second)});
  began_.erase(began);
}

/// Leases that end without a release, because their reader was lost or their time was over, make room for others.
void LeaseCarrier::keep(std::map<Key, TimePoint>& leases, const Key& lease, TimePoint at) {
  if (leases.size() >= kLeasesKept)
    leases.erase(std::ranges::min_element(leases, {}, [](const auto& entry) { return entry.second; }));
  leases[lease] = at;
}

}  // namespace mc::node
