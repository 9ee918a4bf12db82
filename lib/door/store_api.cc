#include "door/store_api.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/units.h"
#include "wire/value_group.h"

namespace mc::door {
namespace {

using PutResult = node::ValueStore::PutResult;

constexpr int kCreated = 201;
constexpr int kDiskThreads = 32;  // calls that share a flush
/// Bodies of calls that run. A call holds the body, and the value that is made of it.
constexpr size_t kRunningMax = size_t{256} << 20;
constexpr Duration kTime = std::chrono::minutes(1);
constexpr Duration kTimeMax = std::chrono::hours(1);

int64_t ms(Duration time) {
  return time / 1ms;
}

/// A value for listings and answers, without its name. A time that does not end is left out.
Json info_json(const node::ValueInfo& info) {
  Json out = Json::object({{"bytes", info.bytes}, {"crc32c", crc_text(info.crc)}, {"uses", info.uses}});
  if (info.ttl) out.set("ttl_ms", ms(*info.ttl));
  out.set("pinned", info.pin > Duration{});
  out.set("durable", info.copy.has_value());
  out.set("tier", to_string(info.in_memory ? ValueTier::memory : ValueTier::disk));
  if (info.pin > Duration{} && info.pin < Duration::max()) out.set("pin_ms", ms(info.pin));
  if (info.lease > Duration{}) out.set("lease_ms", ms(info.lease));
  if (info.replicas.is_single()) return out;
  Json holders = Json::array();
  for (const std::string& holder : info.replicas.holders) holders.push(holder);
  out.set("replicas", info.replicas.copies).set("holders", std::move(holders));
  return out;
}

/// The body of an error with its next step, which store clients print.
Json error_json(const Error& error) {
  const auto parsed = Json::parse(http::error_response(error).body);
  MC_ASSERT(parsed.has_value());
  Json inner = (*parsed)["error"];
  if (!error.next.empty()) inner.set("next", error.next);
  return inner;
}

http::Response json_response(int status, const Json& json) {
  return {.status = status, .headers = {{"Content-Type", "application/json"}}, .body = json.dump()};
}

/// "abc" and what its sum is, for a client whose bytes were damaged on their way.
Error damaged(uint32_t said, uint32_t found, size_t bytes) {
  return user_error(err::kInvalidField,
                    "crc32c of the " + std::to_string(bytes) + " bytes that arrived is " + crc_text(found) +
                        ", and the client says " + crc_text(said) + ": they were damaged on their way",
                    "crc32c", "send the value again");
}

/// The time that a request gives itself, from its first byte on.
Result<Duration> time_of(const http::Request& request) {
  const std::string_view header = http::find_header(request.headers, "x-mc-deadline-ms");
  if (header.empty()) return kTime;
  if (const auto asked = parse_u64(header, 1, static_cast<uint64_t>(kTimeMax / 1ms)))
    return Duration(std::chrono::milliseconds(*asked));
  return user_error(err::kInvalidField, "not a number of milliseconds from 1 to " + std::to_string(kTimeMax / 1ms),
                    "x-mc-deadline-ms");
}

http::Response no_memory() {
  log_warn("call of the store of values refused: not enough memory");
  return http::error_response(err::kNotEnoughMemory, "there is not enough memory for this call; retry");
}

http::Response node_stopping() {
  return http::error_response(err::kDraining, "the node is stopping");
}

Error no_replicas(uint32_t copies) {
  return user_error(
      err::kNotDurable,
      std::to_string(copies) + " replicas need as many cache nodes, and this node keeps values on its own", "replicas",
      "put the value through a cache node that is a member of a cluster");
}

/// The error of a call that is made again where it may wait; no client gets it.
Error deferred() {
  return user_error(err::kQueueFull, "other nodes have to be asked for the value", "key", "send the request again");
}

uint32_t sum_of(std::string_view bytes) {
  return crc32c({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

/// Whether the bytes of a group that the answer to `op` is made of match their checksums.
bool is_sound_part(const Result<std::vector<wire::GroupMember>>& members, const StoreOp& op) {
  if (!members) return false;
  const wire::GroupMember* member = op.lists_members ? nullptr : wire::find_member(*members, op.member);
  return member == nullptr || sum_of(member->bytes) == member->crc;
}

/// The memory of an answer, until the client has its bytes.
struct KeptValue {
  std::shared_ptr<const void> room;
  node::SharedValue value;
};

http::Response with_retry(http::Response response) {
  response.headers.push_back({"Retry-After", "1"});
  return response;
}

}  // namespace

/// The end of one operation.
struct StoreApi::Outcome {
  int status = 200;
  Json json;                         // of its line in a batch
  node::SharedValue value;           // of a get
  std::shared_ptr<const void> room;  // of a get: for its answer
};

/// The bounds of one request for its operations, and the work that they leave behind.
struct StoreApi::Call {
  TimePoint until = kNever;  // no lock on a key is waited for any longer
  bool may_wait = true;      // for the disk, or for other nodes
  bool wants_wait = false;   // set: the call may not wait, and has to be made again where it may
  bool is_batch = false;
  Later later = {};
};

StoreApi::StoreApi(const PageLock& lock, const node::ValueLimits& limits, const Clock& clock,
                   std::unique_ptr<node::ValueDisk> disk)
    : lock_(lock),
      limits_(limits),
      values_(limits, std::move(disk), clock),
      answering_(std::make_shared<AnswersUnderWay>()),
      clock_(clock) {
  if (values_.has_disk()) open_pool();
}

void StoreApi::join(ReplicaLink& link, const node::ReplicaKeeper::Options& options) {
  MC_ASSERT(!replicas_);
  if (!pool_) open_pool();
  replicas_ = std::make_unique<Replicas>(values_, link, clock_, options, limits_.value_bytes_max);
  replicas_->start();
}

void StoreApi::open_pool() {
  DoorPool::Options options;
  options.threads = kDiskThreads;
  options.running_bytes_max = kRunningMax;
  // A node has few clients. Without tenants most of them are one program.
  options.owner_share = limits_.tenants == node::ValueTenants::several ? 0.5 : 1;
  pool_ = std::make_unique<DoorPool>(options);
}

void StoreApi::set_keys(std::shared_ptr<const ApiKeys> keys) {
  const std::lock_guard lock(mutex_);
  keys_ = std::move(keys);
}

bool StoreApi::has_keys() const {
  const std::lock_guard lock(mutex_);
  return keys_ != nullptr;
}

/// The tenant of the request's API key; nullopt: the request has none, or an unknown one.
std::optional<ApiKeys::Grant> StoreApi::grant_of(const http::Request& request) const {
  const std::lock_guard lock(mutex_);
  const auto* found = keys_ ? keys_->find(http::find_header(request.headers, "authorization")) : nullptr;
  if (!found) return std::nullopt;
  ApiKeys::Grant out = *found;
  if (out.tenant.empty()) out.tenant = kStoreTenant;
  return out;
}

/// The tenant as which the request is served. A tenant's key opens the values of that tenant; an administrator may name
/// another tenant.
Result<std::string> StoreApi::tenant_of(const http::Request& request) const {
  MC_TRY(named, store_tenant(request.query));
  if (const auto grant = grant_of(request)) {
    if (!named || *named == grant->tenant) return grant->tenant;
    if (grant->admin) return *named;
    return user_error(err::kForbidden, "tenant " + grant->tenant + " may not use the values of another tenant",
                      "Authorization");
  }
  if (lock_.admits(request)) return named.value_or(std::string(kStoreTenant));
  if (!has_keys()) return lock_.refusal(request.path);
  const std::string_view key = http::find_header(request.headers, "authorization");
  return user_error(err::kUnauthorized, key.empty() ? "no API key: send Authorization: Bearer KEY" : "unknown API key",
                    "Authorization");
}

std::optional<http::Response> StoreApi::refuse_head(const http::Request& head) const {
  const auto tenant = tenant_of(head);
  if (tenant) return std::nullopt;
  return http::operators_error(tenant.error());
}

/// A listing and a value in memory need neither a disk nor other nodes, and an answer to HEAD needs no disk. Any
/// operation of a batch may need other nodes, and a batch of which a part is done must not be made again.
bool StoreApi::may_wait(const http::Request& request, std::string_view key) {
  const bool is_head = request.method == http::Method::head;
  if (!pool_ || (is_head && !replicas_)) return false;
  if (request.method != http::Method::get && !is_head)
    return values_.has_disk() || (replicas_ && (key.empty() || replicas_->may_be_elsewhere()));
  const auto tenant = tenant_of(request);
  return !is_head && !key.empty() && tenant && !values_.is_in_memory({*tenant, std::string(key)});
}

void StoreApi::handle(http::Request request, std::string key, const http::Responder& out) {
  if (may_wait(request, key)) return submit(std::move(request), std::move(key), out);
  Call call{.may_wait = !pool_};
  http::Response response = answer_any(request, key, call);
  MC_ASSERT(!call.later && !(call.is_batch && call.wants_wait));
  if (call.wants_wait) return submit(std::move(request), std::move(key), out);
  out.respond(std::move(response));
}

void StoreApi::submit(http::Request request, std::string key, const http::Responder& out) {
  const auto time = time_of(request);
  if (!time) return out.respond(http::error_response(time.error()));
  DoorPool::Job job;
  const auto grant = grant_of(request);
  job.owner = grant ? "tenant " + grant->tenant : client_of(request.peer);
  job.bytes = request.body.size();
  job.deadline = after(request.received, *time);
  job.run = [this, kept = std::make_shared<const http::Request>(std::move(request)), key = std::move(key), out,
             until = job.deadline](const DoorPool::TicketPtr& ticket) { run(*kept, key, out, until, ticket); };
  job.end = [out, time = *time](DoorPool::End end) {
    if (end == DoorPool::End::stopped) return out.respond(node_stopping());
    out.respond(http::error_response(user_error(
        err::kDeadlineExceeded,
        "deadline of " + std::to_string(time / 1ms) + " ms passed; the call may have been done or not", "key")));
  };
  switch (pool_->submit(std::move(job))) {
    case DoorPool::Admission::taken: return;
    case DoorPool::Admission::stopping: return out.respond(with_retry(node_stopping()));
    case DoorPool::Admission::full: break;
  }
  out.respond(with_retry(http::error_response(err::kQueueFull, "too many calls wait for the disk or for other nodes")));
}

/// A call on a thread of the pool, and the work behind its answer.
void StoreApi::run(const http::Request& request, std::string_view key, const http::Responder& out, TimePoint until,
                   const DoorPool::TicketPtr& ticket) {
  Call call{.until = until};
  http::Response response;
  if (out.is_open() && !ticket->is_settled()) {  // nothing is begun for a client that left or was answered
    try {
      const FailsAlone alone;
      response = answer_any(request, key, call);
    } catch (const std::bad_alloc&) {
      response = no_memory();
    }
  }
  if (ticket->settle()) out.respond(std::move(response));
  try {
    if (call.later) call.later();
    values_.drop_unneeded();
  } catch (const std::bad_alloc&) {
    log_warn("work behind an answer of the store of values was left: not enough memory");
  }
}

http::Response StoreApi::answer_any(const http::Request& request, std::string_view key, Call& call) {
  auto done = answer(request, key, call);
  if (done) return std::move(*done);
  http::Response refused = http::error_response(done.error());
  refused.body = Json::object({{"error", error_json(done.error())}}).dump();
  return done.error().mc == err::kQueueFull ? with_retry(std::move(refused)) : refused;
}

Result<http::Response> StoreApi::answer(const http::Request& request, std::string_view key, Call& call) {
  MC_TRY(tenant, tenant_of(request));
  if (key.empty() && request.method == http::Method::post) return answer_batch(tenant, request.body, call);
  if (key.empty()) {
    MC_TRY(listing, parse_store_listing(request.query));
    return list(tenant, listing);
  }
  MC_TRY(op, parse_store_op(request, key));
  return answer_one(tenant, op, call);
}

Result<http::Response> StoreApi::answer_one(const std::string& tenant, const StoreOp& op, Call& call) {
  MC_TRY(done, perform(tenant, op, call));
  if (op.verb == StoreVerb::remove || op.verb == StoreVerb::pin || op.verb == StoreVerb::unpin)
    return http::Response{.status = 204, .headers = {}, .body = {}};
  if (op.verb != StoreVerb::get && op.verb != StoreVerb::exist) return json_response(done.status, done.json);
  http::Response out{.status = 200,
                     .headers = {{"Content-Type", "application/octet-stream"},
                                 {std::string(kStoreCrcHeader), std::string(done.json["crc32c"].as_string())}},
                     .body = {}};
  if (const Json* ttl = done.json.find("ttl_ms")) out.headers.push_back({"x-mc-ttl-ms", ttl->dump()});
  out.headers.push_back({std::string(kStoreTierHeader), std::string(done.json["tier"].as_string())});
  if (op.verb == StoreVerb::exist) {
    out.get_bytes = static_cast<size_t>(done.json["bytes"].as_int());
    return out;
  }
  if (!op.member.empty() || op.lists_members) return answer_member(tenant, op, done, std::move(out), call);
  MC_CHECK(verify(tenant, op, done, call));
  out.lent = done.value->view();
  out.held = std::make_shared<const KeptValue>(KeptValue{std::move(done.room), std::move(done.value)});
  return out;
}

/// A member of the group that was got, or the list of its members. `out` is the answer with the whole value. The other
/// members are not summed: the directory has a checksum of its own, and those of the members.
Result<http::Response> StoreApi::answer_member(const std::string& tenant, const StoreOp& op, Outcome& got,
                                               http::Response out, Call& call) {
  MC_ASSERT(op.verb == StoreVerb::get && got.value != nullptr);
  auto members = wire::parse_group(got.value->view());
  if (!is_sound_part(members, op)) {
    MC_CHECK(verify(tenant, op, got, call));
    members = wire::parse_group(got.value->view());
  }
  if (!members)
    return user_error(err::kInvalidField, members.error().what, "member", "get the value without member and members");
  if (op.lists_members) {
    Json rows = Json::array();
    for (const wire::GroupMember& member : *members) {
      Json row = Json::object({{"name", member.name}, {"bytes", member.bytes.size()}});
      rows.push(std::move(row.set("crc32c", crc_text(member.crc))));
    }
    return json_response(200, Json::object({{"members", std::move(rows)}}));
  }
  const wire::GroupMember* member = wire::find_member(*members, op.member);
  if (member == nullptr)
    return user_error(err::kNotFound, "the group has no member of that name", "member",
                      "list its members: mc-cache get --members, or members=true over HTTP");
  for (auto& [name, text] : out.headers)
    if (name == kStoreCrcHeader) text = crc_text(member->crc);
  out.lent = member->bytes;
  out.held = std::make_shared<const KeptValue>(KeptValue{std::move(got.room), std::move(got.value)});
  return out;
}

/// Checks the bytes that are sent. Damaged ones are read again from disk; MC6004 and no value any more when there is no
/// copy on disk.
Result<void> StoreApi::verify(const std::string& tenant, const StoreOp& op, Outcome& got, Call& call) {
  constexpr int kTriesMax = 4;
  for (int attempt = 0; attempt < kTriesMax; ++attempt) {
    MC_ASSERT(got.value != nullptr);
    if (sum_of(got.value->view()) == got.value->crc()) return {};
    const node::ValueKey key{tenant, op.key};
    if (!values_.lose_memory(key, got.value) && !(replicas_ && replicas_->may_be_elsewhere()))
      return user_error(err::kChecksum, "the value in memory does not match its checksum; it was removed", "key",
                        "put the value again, and check the memory of the host");
    call.wants_wait = !call.may_wait;
    if (call.wants_wait) break;
    MC_TRY(again, get(tenant, op, call));
    got = std::move(again);
  }
  return user_error(err::kChecksum, "the value in memory does not match its checksum", "key",
                    "get the value again, and check the memory of the host");
}

bool AnswersUnderWay::add(const std::string& tenant, uint64_t bytes, uint64_t most, uint64_t tenant_most) {
  const std::lock_guard lock(mutex_);
  uint64_t& own = by_tenant_[tenant];
  const bool fits = (total_ == 0 || total_ + bytes <= most) && (own == 0 || own + bytes <= tenant_most);
  if (fits) own += bytes, total_ += bytes;
  if (own == 0) by_tenant_.erase(tenant);
  return fits;
}

void AnswersUnderWay::remove(const std::string& tenant, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes == 0) return;  // a tenant without bytes has no entry
  uint64_t& own = by_tenant_[tenant];
  MC_ASSERT(bytes <= own && own <= total_);
  own -= bytes, total_ -= bytes;
  if (own == 0) by_tenant_.erase(tenant);
}

std::shared_ptr<const void> StoreApi::reserve(const std::string& tenant, uint64_t bytes) {
  if (!answering_->add(tenant, bytes, kAnswersMax, kTenantAnswersMax)) return nullptr;
  // The answer may outlive this object.
  return {static_cast<const void*>(answering_.get()),
          [answering = answering_, tenant, bytes](const void*) { answering->remove(tenant, bytes); }};
}

Result<http::Response> StoreApi::list(const std::string& tenant, const StoreListing& listing) {
  StoredValues::Sums own;
  const auto found = values_.list(tenant, listing.prefix, listing.after, listing.limit, own);
  Json out = Json::object({{"capacity_bytes", limits_.memory_bytes}, {"used_bytes", own.used_bytes}});
  out.set("held_bytes", own.held_bytes);
  Json values = Json::array();
  for (const node::ValueInfo& info : found.values) {
    Json row = Json::object({{"key", info.name}});
    Json fields = info_json(info);
    if (replicas_ && !info.replicas.is_single())
      fields.set("missing", replicas_->missing({tenant, info.name}, info.replicas));
    for (const JsonMember& member : fields.members()) row.set(member.key, member.value);
    values.push(std::move(row));
  }
  out.set("tenant", tenant).set("values", std::move(values)).set("more", found.more);
  if (!found.last.empty()) out.set("last", found.last);
  return json_response(200, out);
}

/// An operation of a batch whose answer has `answered` bytes of values already. Nothing is done past the deadline,
/// when nobody waits for the answer, and no value is read from disk that the answer has no room for.
Result<StoreApi::Outcome> StoreApi::perform_in_batch(const std::string& tenant, const StoreOp& op, Call& call,
                                                     size_t answered) {
  if (call.until != kNever && SystemClock::instance().now() >= call.until)
    return user_error(err::kDeadlineExceeded, "the deadline passed before this operation of the batch", "key",
                      "send the rest in another batch");
  if (op.verb == StoreVerb::get)
    if (const auto info = values_.find({tenant, op.key}); info && answered + info->bytes > limits_.value_bytes_max)
      return batch_is_full();
  return perform(tenant, op, call);
}

Error StoreApi::batch_is_full() const {
  return user_error(err::kBodyTooLarge,
                    "the values of this batch are more than the " + std::to_string(limits_.value_bytes_max >> 20) +
                        " MiB that one answer holds",
                    "key", "get the rest in another batch");
}

Result<http::Response> StoreApi::answer_batch(const std::string& tenant, std::string_view body, Call& call) {
  call.is_batch = true;
  MC_TRY(ops, parse_store_batch(body));
  Json results = Json::array();
  struct Kept {
    std::vector<std::shared_ptr<const void>> rooms;
    std::string values;
  };
  const auto kept = std::make_shared<Kept>();
  for (const StoreOp& op : ops) {
    Result<Outcome> done = perform_in_batch(tenant, op, call, kept->values.size());
    Result<void> verified;
    if (done && done->value) {
      if (kept->values.size() + done->value->size() > limits_.value_bytes_max) {
        verified = batch_is_full();  // a larger value replaced the one that was measured
      } else {
        verified = verify(tenant, op, *done, call);
        if (verified) kept->values += done->value->view();
        kept->rooms.push_back(std::move(done->room));
      }
    }
    const Error* error = !done ? &done.error() : !verified ? &verified.error() : nullptr;
    Json line = Json::object({{"status", error ? http_status_of(*error) : done->status}});
    if (error) {
      line.set("error", error_json(*error));
    } else {
      for (const JsonMember& member : done->json.members()) line.set(member.key, member.value);
    }
    results.push(std::move(line));
  }
  MC_ASSERT_EQ(results.size(), ops.size());
  http::Response out{.status = 200, .headers = {{"Content-Type", "application/octet-stream"}}, .body = {}};
  out.body = Json::object({{"results", std::move(results)}}).dump() + "\n";
  out.lent = kept->values;
  out.held = kept;
  return out;
}

// ---- operations ------------------------------------------------------------------------------

Result<StoreApi::Outcome> StoreApi::put(const std::string& tenant, const StoreOp& op, Call& call) {
  auto value = std::make_shared<const node::ValueBytes>(op.value);
  if (op.crc && *op.crc != value->crc()) return damaged(*op.crc, value->crc(), value->size());
  Json json = Json::object({{"bytes", value->size()}, {"crc32c", crc_text(value->crc())}});
  const node::ValueKey key{tenant, op.key};
  const bool wants_replicas = op.terms.copies > 1 || op.terms.durability == node::Durability::d3;
  Later* later = call.is_batch || !call.may_wait ? nullptr : &call.later;
  const bool asks = replicas_ && (wants_replicas || may_be_shared(key));
  if (asks && defers(call)) return deferred();
  MC_TRY(done, asks ? replicas_->put(key, value, op.terms, call.until, later)
               : wants_replicas && op.terms.durability != node::Durability::d3
                   ? Result<PutResult>(no_replicas(op.terms.copies))
                   : values_.put(key, value, op.terms, later, call.until));
  json.set("outcome", kPutResultNames[static_cast<size_t>(done)]);
  return Outcome{done == PutResult::created ? kCreated : 200, std::move(json), nullptr, nullptr};
}

Result<StoreApi::Outcome> StoreApi::get(const std::string& tenant, const StoreOp& op, Call& call) {
  if (op.verb == StoreVerb::exist) {
    const bool is_here = values_.find({tenant, op.key}).has_value();
    MC_TRY(info, find_anywhere({tenant, op.key}, call));
    Json json = info_json(info);
    if (!is_here) json.set("tier", to_string(ValueTier::remote));
    return Outcome{200, std::move(json), nullptr, nullptr};
  }
  // Room is taken before the value is read from disk: 32 calls that read values of 64 MiB would hold 4 GiB.
  const node::ValueKey key{tenant, op.key};
  const auto info = values_.find(key);
  auto room = reserve(tenant, info ? info->bytes : 0);
  const auto is_full = [] {
    return user_error(err::kQueueFull,
                      "answers wait for slow readers: " + std::to_string(kTenantAnswersMax >> 20) +
                          " MiB of this tenant, or " + std::to_string(kAnswersMax >> 20) + " MiB of all",
                      "key", "get the value again in a moment");
  };
  if (!room) return is_full();
  MC_TRY(found, get_anywhere(key, op, call));
  if (!found.value) {  // another call took its place in memory
    MC_ASSERT(!call.may_wait);
    call.wants_wait = true;
    return user_error(err::kQueueFull, "the value has to be read from disk", "key", "get the value again");
  }
  if (!info || found.value->size() > info->bytes) {  // it was replaced meanwhile
    room = reserve(tenant, found.value->size());
    if (!room) return is_full();
  }
  const ValueTier tier = !info ? ValueTier::remote : info->in_memory ? ValueTier::memory : ValueTier::disk;
  Json json = info_json(found.info);
  json.set("tier", to_string(tier));
  return Outcome{200, std::move(json), std::move(found.value), std::move(room)};
}

Result<StoreApi::Outcome> StoreApi::perform(const std::string& tenant, const StoreOp& op, Call& call) {
  const node::ValueKey key{tenant, op.key};
  switch (op.verb) {
    case StoreVerb::put: return put(tenant, op, call);
    case StoreVerb::get:
    case StoreVerb::exist: return get(tenant, op, call);
    default: break;
  }
  if (op.verb == StoreVerb::copy || op.verb == StoreVerb::move) return relocate(tenant, op, call);
  if (op.verb == StoreVerb::remove)
    MC_CHECK(remove(key, op, call));
  else
    MC_CHECK(pin(key, op.verb == StoreVerb::pin ? op.pin : Duration{}, call));
  return Outcome{200, Json::object(), nullptr, nullptr};
}

Result<StoreApi::Outcome> StoreApi::relocate(const std::string& tenant, const StoreOp& op, Call& call) {
  const node::ValueKey key{tenant, op.key}, to{tenant, op.to};
  if (may_be_shared(to) && defers(call)) return deferred();
  const bool is_copy = op.verb == StoreVerb::copy, is_to_shared = has_replicas_anywhere(to, call);
  if (is_to_shared || (!is_copy && has_replicas(key)))
    return user_error(err::kInvalidField,
                      "the value of " + std::string(is_to_shared ? "the new key" : "the key") +
                          " has replicas on other nodes, which copy and move do not reach",
                      "key", "get the value and put it under the new key, with the replicas that it should have");
  MC_TRY(done, is_copy ? values_.copy(key, to, op.terms.replaces, call.until)
                       : values_.move(key, to, op.terms.replaces, call.until));
  return Outcome{done == PutResult::created ? kCreated : 200,
                 Json::object({{"outcome", kPutResultNames[static_cast<size_t>(done)]}}), nullptr, nullptr};
}

// ---- replicas --------------------------------------------------------------------------------

bool StoreApi::has_replicas(const node::ValueKey& key) {
  if (!replicas_) return false;
  const auto info = values_.find(key);
  return info && !info->replicas.is_single();
}

/// Whether the key has a value with replicas here, or on another node that answers.
bool StoreApi::has_replicas_anywhere(const node::ValueKey& key, const Call& call) {
  return has_replicas(key) || (may_be_shared(key) && replicas_->find(key, call.until));
}

/// True: the call may not wait for other nodes, and has to be made again where it may.
bool StoreApi::defers(Call& call) {
  call.wants_wait = call.wants_wait || !call.may_wait;
  return call.wants_wait;
}

/// Whether other nodes have to be asked before the key's value is changed.
bool StoreApi::may_be_shared(const node::ValueKey& key) {
  if (!replicas_) return false;
  const auto info = values_.find(key);
  return info ? !info->replicas.is_single() : replicas_->may_be_elsewhere();
}

/// The value of this node, or of another one where this node has none or a damaged one.
Result<StoredValues::Found> StoreApi::get_anywhere(const node::ValueKey& key, const StoreOp& op, Call& call) {
  auto found = values_.get(key, op.lease, call.may_wait);
  const bool is_gone = !found && (found.error().mc == err::kNotFound || found.error().mc == err::kChecksum);
  if (!is_gone || !replicas_ || !replicas_->may_be_elsewhere()) return found;
  if (defers(call)) return found;
  auto elsewhere = replicas_->get(key, call.until);
  if (elsewhere || elsewhere.error().mc == err::kNotFound) return elsewhere ? std::move(elsewhere) : std::move(found);
  return found.error().mc == err::kChecksum ? std::move(found) : std::move(elsewhere);
}

Result<node::ValueInfo> StoreApi::find_anywhere(const node::ValueKey& key, Call& call) {
  auto found = values_.find(key);
  if (found || found.error().mc != err::kNotFound || !replicas_ || !replicas_->may_be_elsewhere()) return found;
  return defers(call) ? found : replicas_->find(key, call.until);
}

Result<void> StoreApi::remove(const node::ValueKey& key, const StoreOp& op, Call& call) {
  if (!may_be_shared(key)) return values_.remove(key, call.until);
  return defers(call) ? Result<void>(deferred()) : replicas_->remove(key, op.forced, call.until);
}

Result<void> StoreApi::pin(const node::ValueKey& key, Duration time, Call& call) {
  if (!may_be_shared(key)) return values_.pin(key, time, call.until);
  return defers(call) ? Result<void>(deferred()) : replicas_->pin(key, time, call.until);
}

void StoreApi::update(Metrics& metrics) {
  if (values_.expire() && !dropping_.exchange(true)) {
    DoorPool::Job job;
    job.run = [this](const DoorPool::TicketPtr& ticket) {
      (void)ticket->settle();
      try {
        values_.drop_unneeded();
      } catch (const std::bad_alloc&) {
        log_warn("old values stay on disk until the next try: not enough memory");
      }
      dropping_ = false;
    };
    job.end = [](DoorPool::End) {};
    if (pool_->submit(std::move(job)) != DoorPool::Admission::taken) dropping_ = false;
  }
  values_.update(metrics);
  if (replicas_) replicas_->update(metrics);
}

}  // namespace mc::door
