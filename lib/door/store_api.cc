#include "door/store_api.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/copy_crc.h"
#include "base/errors.h"

namespace mc::door {
namespace {

using PutResult = node::ValueStore::PutResult;

constexpr std::string_view kPutResults[] = {"created", "replaced", "unchanged"};
constexpr int kCreated = 201;
constexpr int kDiskThreads = 32;  // calls that share a flush

int64_t ms(Duration time) {
  return time / 1ms;
}

/// A value for listings and answers, without its name. A time that does not end is left out.
Json info_json(const node::ValueInfo& info) {
  Json out = Json::object({{"bytes", info.bytes}, {"crc32c", crc_text(info.crc)}, {"uses", info.uses}});
  if (info.ttl) out.set("ttl_ms", ms(*info.ttl));
  out.set("pinned", info.pin > Duration{});
  out.set("durable", info.copy.has_value());
  out.set("tier", info.in_memory ? "memory" : "disk");
  if (info.pin > Duration{} && info.pin < Duration::max()) out.set("pin_ms", ms(info.pin));
  if (info.lease > Duration{}) out.set("lease_ms", ms(info.lease));
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

}  // namespace

/// The end of one operation.
struct StoreApi::Outcome {
  int status = 200;
  Json json;                // of its line in a batch
  node::SharedValue value;  // of a get
};

StoreApi::StoreApi(const PageLock& lock, const node::ValueLimits& limits, const Clock& clock,
                   std::unique_ptr<node::ValueDisk> disk)
    : lock_(lock),
      limits_(limits),
      values_(limits, std::move(disk), clock),
      answering_(std::make_shared<std::atomic<uint64_t>>(0)) {
  if (!values_.has_disk()) return;
  DoorPool::Options options;
  options.threads = kDiskThreads;
  options.large_bytes = limits.value_bytes_max;
  options.owner_share = 1;  // a node has few clients, and most are one program
  pool_ = std::make_unique<DoorPool>(options);
}

void StoreApi::set_keys(std::shared_ptr<const ApiKeys> keys) {
  const std::lock_guard lock(mutex_);
  keys_ = std::move(keys);
}

/// The tenant as which the request is served. A tenant's key opens the values of that tenant; an administrator may name
/// another tenant.
Result<std::string> StoreApi::tenant_of(const http::Request& request) const {
  MC_TRY(named, store_tenant(request.query));
  std::shared_ptr<const ApiKeys> keys;
  {
    const std::lock_guard lock(mutex_);
    keys = keys_;
  }
  const std::string_view key = http::find_header(request.headers, "authorization");
  if (const auto* found = keys ? keys->find(key) : nullptr) {
    const std::string own = found->tenant.empty() ? std::string(kStoreTenant) : found->tenant;
    if (!named || *named == own) return own;
    if (found->admin) return *named;
    return user_error(err::kForbidden, "tenant " + own + " may not use the values of another tenant", "Authorization");
  }
  if (lock_.admits(request)) return named.value_or(std::string(kStoreTenant));
  if (!keys) return lock_.refusal(request.path);
  return user_error(err::kUnauthorized, key.empty() ? "no API key: send Authorization: Bearer KEY" : "unknown API key",
                    "Authorization");
}

std::optional<http::Response> StoreApi::refuse_head(const http::Request& head) const {
  const auto tenant = tenant_of(head);
  if (tenant) return std::nullopt;
  return http::error_response(tenant.error());
}

/// A listing and a value in memory need no disk, and neither does an answer to HEAD.
bool StoreApi::waits_for_disk(const http::Request& request, std::string_view key) {
  if (!values_.has_disk() || request.method == http::Method::head) return false;
  if (request.method != http::Method::get) return true;
  const auto tenant = tenant_of(request);
  return !key.empty() && tenant && !values_.is_in_memory({*tenant, std::string(key)});
}

void StoreApi::handle(const http::Request& request, std::string_view key, const http::Responder& out) {
  if (waits_for_disk(request, key)) return submit(request, key, out);
  Later later;
  out.respond(answer_any(request, key, later));
  MC_ASSERT(!later);
}

void StoreApi::submit(const http::Request& request, std::string_view key, const http::Responder& out) {
  DoorPool::Job job;
  job.owner = client_of(request.peer);
  job.bytes = request.body.size();
  job.run = [this, kept = std::make_shared<const http::Request>(request), key = std::string(key),
             out](const DoorPool::TicketPtr& ticket) {
    Later later;
    http::Response response = answer_any(*kept, key, later);
    if (ticket->settle()) out.respond(std::move(response));
    if (later) later();
    values_.drop_unneeded();
  };
  job.end = [out](DoorPool::End) { out.respond(http::error_response(err::kDraining, "the node is stopping")); };
  const auto taken = pool_->submit(std::move(job));
  if (taken == DoorPool::Admission::taken) return;
  http::Response refused = taken == DoorPool::Admission::full
                               ? http::error_response(err::kQueueFull, "too many calls wait for the disk")
                               : http::error_response(err::kDraining, "the node is stopping");
  refused.headers.push_back({"Retry-After", "1"});
  out.respond(std::move(refused));
}

http::Response StoreApi::answer_any(const http::Request& request, std::string_view key, Later& later) {
  auto done = answer(request, key, later);
  if (done) return std::move(*done);
  http::Response refused = http::error_response(done.error());
  refused.body = Json::object({{"error", error_json(done.error())}}).dump();
  if (done.error().mc == err::kQueueFull) refused.headers.push_back({"Retry-After", "1"});
  return refused;
}

Result<http::Response> StoreApi::answer(const http::Request& request, std::string_view key, Later& later) {
  MC_TRY(tenant, tenant_of(request));
  if (key.empty() && request.method == http::Method::post) return answer_batch(tenant, request.body);
  if (key.empty()) {
    MC_TRY(listing, parse_store_listing(request.query));
    return list(tenant, listing);
  }
  MC_TRY(op, parse_store_op(request, key));
  return answer_one(tenant, op, later);
}

Result<http::Response> StoreApi::answer_one(const std::string& tenant, const StoreOp& op, Later& later) {
  MC_TRY(done, perform(tenant, op, &later));
  if (op.verb == StoreVerb::remove || op.verb == StoreVerb::pin || op.verb == StoreVerb::unpin)
    return http::Response{.status = 204, .headers = {}, .body = {}};
  if (op.verb != StoreVerb::get && op.verb != StoreVerb::exist) return json_response(done.status, done.json);
  http::Response out{.status = 200,
                     .headers = {{"Content-Type", "application/octet-stream"},
                                 {std::string(kStoreCrcHeader), std::string(done.json["crc32c"].as_string())}},
                     .body = {}};
  if (const Json* ttl = done.json.find("ttl_ms")) out.headers.push_back({"x-mc-ttl-ms", ttl->dump()});
  if (op.verb == StoreVerb::exist) {
    out.get_bytes = static_cast<size_t>(done.json["bytes"].as_int());
    return out;
  }
  MC_ASSERT(done.value != nullptr);
  out.held = reserve(done.value->size());
  if (!out.held)
    return user_error(err::kQueueFull,
                      "answers of " + std::to_string(kAnswersMax >> 20) + " MiB wait for slow readers");
  MC_CHECK(append_value(tenant, op, *done.value, out.body));
  return out;
}

/// Appends the bytes. MC6004 and no value any more when memory no longer has the bytes that were put.
Result<void> StoreApi::append_value(const std::string& tenant, const StoreOp& op, const node::ValueBytes& value,
                                    std::string& to) {
  const size_t before = to.size();
  to.append(value.view());
  const std::span<const std::byte> copied{reinterpret_cast<const std::byte*>(to.data()) + before, value.size()};
  if (sum_crc32c(copied) == value.crc()) return {};
  to.resize(before);
  (void)values_.remove({tenant, op.key});
  return user_error(err::kChecksum, "the value in memory does not match its checksum; it was removed", "key",
                    "put the value again, and check the memory of the host");
}

std::shared_ptr<const void> StoreApi::reserve(uint64_t bytes) {
  uint64_t before = answering_->load(std::memory_order_relaxed);
  do {
    if (before > 0 && before + bytes > kAnswersMax) return nullptr;
  } while (!answering_->compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
  // The answer may outlive this object.
  return {static_cast<const void*>(answering_.get()), [counter = answering_, bytes](const void*) {
            const uint64_t was = counter->fetch_sub(bytes, std::memory_order_relaxed);
            MC_ASSERT_LE(bytes, was);
          }};
}

Result<http::Response> StoreApi::list(const std::string& tenant, const StoreListing& listing) {
  StoredValues::Totals totals;
  const auto found = values_.list(tenant, listing.prefix, listing.after, listing.limit, totals);
  Json out = Json::object({{"capacity_bytes", limits_.memory_bytes}, {"used_bytes", totals.used_bytes}});
  out.set("held_bytes", totals.held_bytes);
  Json values = Json::array();
  for (const node::ValueInfo& info : found.values) {
    Json row = Json::object({{"key", info.name}});
    const Json fields = info_json(info);
    for (const JsonMember& member : fields.members()) row.set(member.key, member.value);
    values.push(std::move(row));
  }
  out.set("tenant", tenant).set("values", std::move(values)).set("more", found.more);
  return json_response(200, out);
}

Result<http::Response> StoreApi::answer_batch(const std::string& tenant, std::string_view body) {
  MC_TRY(ops, parse_store_batch(body));
  Json results = Json::array();
  std::vector<std::shared_ptr<const void>> held;
  std::string values;
  for (const StoreOp& op : ops) {
    Result<Outcome> done = perform(tenant, op, nullptr);
    Result<void> appended;
    if (done && done->value) {
      if (values.size() + done->value->size() > limits_.value_bytes_max) {
        appended = user_error(err::kBodyTooLarge,
                              "the values of this batch are more than the " +
                                  std::to_string(limits_.value_bytes_max >> 20) + " MiB that one answer holds",
                              "key", "get the rest in another batch");
      } else if (held.push_back(reserve(done->value->size())); !held.back()) {
        appended = user_error(err::kQueueFull,
                              "answers of " + std::to_string(kAnswersMax >> 20) + " MiB wait for slow readers", "key",
                              "get the value again in a moment");
      } else {
        appended = append_value(tenant, op, *done->value, values);
      }
    }
    const Error* error = !done ? &done.error() : !appended ? &appended.error() : nullptr;
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
  out.body = Json::object({{"results", std::move(results)}}).dump() + "\n" + values;
  out.held = std::make_shared<std::vector<std::shared_ptr<const void>>>(std::move(held));
  return out;
}

// ---- operations ------------------------------------------------------------------------------

Result<StoreApi::Outcome> StoreApi::put(const std::string& tenant, const StoreOp& op, Later* later) {
  auto value = std::make_shared<const node::ValueBytes>(op.value);
  if (op.crc && *op.crc != value->crc()) return damaged(*op.crc, value->crc(), value->size());
  Json json = Json::object({{"bytes", value->size()}, {"crc32c", crc_text(value->crc())}});
  MC_TRY(done, values_.put({tenant, op.key}, std::move(value), op.terms, later));
  json.set("outcome", kPutResults[static_cast<size_t>(done)]);
  return Outcome{done == PutResult::created ? kCreated : 200, std::move(json), nullptr};
}

Result<StoreApi::Outcome> StoreApi::get(const std::string& tenant, const StoreOp& op) {
  if (op.verb == StoreVerb::exist) {
    MC_TRY(info, values_.find({tenant, op.key}));
    return Outcome{200, info_json(info), nullptr};
  }
  MC_TRY(found, values_.get({tenant, op.key}, op.lease));
  return Outcome{200, info_json(found.info), std::move(found.value)};
}

Result<StoreApi::Outcome> StoreApi::perform(const std::string& tenant, const StoreOp& op, Later* later) {
  const node::ValueKey key{tenant, op.key};
  switch (op.verb) {
    case StoreVerb::put: return put(tenant, op, later);
    case StoreVerb::get:
    case StoreVerb::exist: return get(tenant, op);
    default: break;
  }
  if (op.verb == StoreVerb::copy || op.verb == StoreVerb::move) {
    const node::ValueKey to{tenant, op.to};
    MC_TRY(done, op.verb == StoreVerb::copy ? values_.copy(key, to, op.terms.replaces)
                                            : values_.move(key, to, op.terms.replaces));
    return Outcome{done == PutResult::created ? kCreated : 200,
                   Json::object({{"outcome", kPutResults[static_cast<size_t>(done)]}}), nullptr};
  }
  if (op.verb == StoreVerb::remove)
    MC_CHECK(values_.remove(key));
  else
    MC_CHECK(values_.pin(key, op.verb == StoreVerb::pin ? op.pin : Duration{}));
  return Outcome{200, Json::object(), nullptr};
}

void StoreApi::update(Metrics& metrics) {
  if (values_.expire() && !dropping_.exchange(true)) {
    DoorPool::Job job;
    job.run = [this](const DoorPool::TicketPtr& ticket) {
      (void)ticket->settle();
      values_.drop_unneeded();
      dropping_ = false;
    };
    job.end = [](DoorPool::End) {};
    if (pool_->submit(std::move(job)) != DoorPool::Admission::taken) dropping_ = false;
  }
  values_.update(metrics);
}

}  // namespace mc::door
