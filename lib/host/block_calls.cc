#include "host/block_calls.h"

#include <algorithm>
#include <initializer_list>
#include <new>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "host/prefill_asks.h"

namespace mc::host {
namespace {

constexpr size_t kBodyMax = size_t{64} << 10;
constexpr size_t kNameBytesMax = 1024;                     // of a tenant or model
constexpr Duration kPinMax = std::chrono::hours(30 * 24);  // of one pin
constexpr Duration kOlderMax = std::chrono::hours(366 * 24);

Error wrong(std::string what, std::string field) {
  return user_error(err::kInvalidField, std::move(what), std::move(field));
}

/// The object in a body; it has no other fields than `known`.
Result<Json> parse_object(std::string_view body, std::initializer_list<std::string_view> known) {
  auto json = Json::parse(body, {.bytes = kBodyMax, .depth = 2, .values = 64});
  if (!json) return wrong("the body is not JSON: " + json.error().what, "body");
  if (!json->is_object()) return wrong("the body is not a JSON object", "body");
  for (const JsonMember& member : json->members())
    if (std::find(known.begin(), known.end(), member.key) == known.end())
      return wrong("there is no field \"" + member.key.substr(0, 100) + "\"", "body");
  return json;
}

Result<BlockHash> read_hash(const Json& value) {
  const auto id = Id128::from_hex(value.as_string());
  if (!value.is_string() || !id || id->is_zero())
    return wrong("not the id of a block: 32 hex digits, as mc-cache ls prints", "prefix");
  return BlockHash{*id};
}

Result<std::string> read_name(const Json& object, std::string_view field) {
  const Json& value = object[field];
  if (value.is_null()) return std::string();
  if (!value.is_string() || value.as_string().empty() || value.as_string().size() > kNameBytesMax)
    return wrong("not a text of 1 to " + std::to_string(kNameBytesMax) + " bytes", std::string(field));
  return std::string(value.as_string());
}

Result<Duration> read_time(const Json& object, std::string_view field, Duration most) {
  const Json& value = object[field];
  const int64_t ms = value.as_int(-1);
  if (!value.is_int() || ms < 1 || ms > most / 1ms)
    return wrong("not a number of milliseconds from 1 to " + std::to_string(most / 1ms), std::string(field));
  return Duration(std::chrono::milliseconds(ms));
}

void put(Json& out, const std::string& tier, const node::BlockTotal& total) {
  out.set(tier + "_blocks", total.blocks).set(tier + "_bytes", total.bytes);
}

Json report_of(Json out, const node::EvictReport& report) {
  put(out, "memory", report.memory);
  put(out, "disk", report.disk);
  Json stayed = Json::array();
  for (size_t i = 0; i < node::kStayedCount; ++i) {
    if (report.stayed[i].blocks == 0) continue;
    Json row = Json::object({{"reason", node::to_string(static_cast<node::Stayed>(i))}});
    stayed.push(std::move(row.set("blocks", report.stayed[i].blocks).set("bytes", report.stayed[i].bytes)));
  }
  return std::move(out.set("stayed", std::move(stayed)));
}

Json report_of(Json out, const node::PinReport& report) {
  out.set("blocks", report.chain.blocks).set("bytes", report.chain.bytes).set("loaded_blocks", report.loaded_blocks);
  return std::move(out.set("pinned_bytes", report.pinned_bytes).set("pinned_bytes_max", report.pinned_bytes_max));
}

Json report_of(Json out, const node::UnpinReport& report) {
  return std::move(out.set("blocks", report.blocks));
}

http::Response ok(const Json& json) {
  return {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = json.dump()};
}

}  // namespace

Result<node::EvictBlocks> parse_evict(std::string_view body) {
  MC_TRY(json, parse_object(body, {"prefix", "tenant", "model", "older_ms", "dry_run"}));
  node::EvictBlocks order;
  if (!json["prefix"].is_null()) {
    MC_TRY(prefix, read_hash(json["prefix"]));
    order.filter.prefix = prefix;
  }
  MC_TRY(tenant, read_name(json, "tenant"));
  MC_TRY(model, read_name(json, "model"));
  order.filter.tenant = std::move(tenant), order.filter.model = std::move(model);
  if (!json["older_ms"].is_null()) {
    MC_TRY(older, read_time(json, "older_ms", kOlderMax));
    order.filter.older = older;
  }
  const Json& dry_run = json["dry_run"];
  if (!dry_run.is_null() && !dry_run.is_bool()) return wrong("neither true nor false", "dry_run");
  order.dry_run = dry_run.as_bool();
  return order;
}

Result<node::PinBlocks> parse_pin(std::string_view body) {
  MC_TRY(json, parse_object(body, {"prefix", "for_ms"}));
  MC_TRY(prefix, read_hash(json["prefix"]));
  MC_TRY(time, read_time(json, "for_ms", kPinMax));
  return node::PinBlocks{prefix, time};
}

Result<node::UnpinBlocks> parse_unpin(std::string_view body) {
  MC_TRY(json, parse_object(body, {"prefix"}));
  MC_TRY(prefix, read_hash(json["prefix"]));
  return node::UnpinBlocks{prefix};
}

void BlockCalls::evict(const http::Request& request, const http::Responder& out) {
  auto order = parse_evict(request.body);
  if (!order) return out.respond(http::error_response(order.error()));
  begin(request, out, std::move(*order));
}

void BlockCalls::pin(const http::Request& request, const http::Responder& out) {
  const auto order = parse_pin(request.body);
  if (!order) return out.respond(http::error_response(order.error()));
  begin(request, out, *order);
}

void BlockCalls::unpin(const http::Request& request, const http::Responder& out) {
  const auto order = parse_unpin(request.body);
  if (!order) return out.respond(http::error_response(order.error()));
  begin(request, out, *order);
}

/// The order has the time that the client gives it: x-mc-deadline-ms, else a minute.
void BlockCalls::begin(const http::Request& request, const http::Responder& out,
                       decltype(node::BlockOrder::what) what) {
  const auto left = ask_time_left(request, SystemClock::instance().now());
  if (!left) return out.respond(http::error_response(left.error()));
  try {
    const FailsAlone alone;
    loop_.post([this, out, left = *left, what = std::move(what)](TimePoint now, node::Actions& actions) {
      const uint64_t id = ++count_;
      waiting_.emplace(id, out);
      worker_.handle(node::BlockOrder{id, after(now, left), what}, now, actions);
    });
    return;
  } catch (const std::bad_alloc&) {
    log_warn("order about blocks refused: not enough memory");
  }
  out.respond(http::error_response(err::kNotEnoughMemory, "there is not enough memory for this order; retry"));
}

Json BlockCalls::named() const {
  return Json::object({{"node", worker_.name().empty() ? title_ : worker_.name()}});
}

void BlockCalls::answer(node::OrderAnswer answer) {
  const auto it = waiting_.find(answer.id);
  if (it == waiting_.end()) return;  // its client left while the answer was on its way
  const http::Responder out = std::move(it->second);
  waiting_.erase(it);
  if (const auto* error = std::get_if<Error>(&answer.what)) return out.respond(http::error_response(*error));
  if (const auto* evicted = std::get_if<node::EvictReport>(&answer.what))
    return out.respond(ok(report_of(named(), *evicted)));
  if (const auto* pinned = std::get_if<node::PinReport>(&answer.what))
    return out.respond(ok(report_of(named(), *pinned)));
  const auto* unpinned = std::get_if<node::UnpinReport>(&answer.what);
  MC_ASSERT(unpinned != nullptr);
  out.respond(ok(report_of(named(), *unpinned)));
}

void BlockCalls::drop_gone(TimePoint now, node::Actions& out) {
  std::vector<uint64_t> gone;
  for (const auto& [id, responder] : waiting_)
    if (!responder.is_open()) gone.push_back(id);
  for (const uint64_t id : gone) {
    waiting_.erase(id);
    worker_.handle(node::BlockOrder{id, now, node::CancelOrder{}}, now, out);
  }
}

}  // namespace mc::host
