#include "host/block_calls.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <new>
#include <vector>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/units.h"
#include "host/prefill_asks.h"

namespace mc::host {
namespace {

constexpr size_t kBodyMax = size_t{64} << 10;
constexpr size_t kNameBytesMax = 1024;  // of a tenant or model

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
  out.set("stayed", std::move(stayed));
  return std::move(out.set("knows_tenant", report.knows_tenant).set("knows_model", report.knows_model));
}

Json report_of(Json out, const node::PinReport& report) {
  out.set("blocks", report.chain.blocks).set("bytes", report.chain.bytes).set("loaded_blocks", report.loaded_blocks);
  out.set("pinned_bytes", report.pinned_bytes).set("pinned_bytes_max", report.pinned_bytes_max);
  return std::move(out.set("durability", report.durable ? "d2" : "d0"));
}

Json report_of(Json out, const node::UnpinReport& report) {
  return std::move(out.set("blocks", report.blocks));
}

Json report_of(Json out, const node::WriteReport& report) {
  out.set("stored", report.stored).set("known", report.known).set("omitted", report.omitted);
  if (report.attention.empty()) return out;
  return std::move(out.set("attention", report.attention).set("node_attention", report.node_attention));
}

http::Response ok(const Json& json) {
  return {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = json.dump()};
}

}  // namespace

Result<node::EvictBlocks> parse_evict(std::string_view body) {
  constexpr std::array<std::string_view, 4> kConditions = {"prefix", "tenant", "model", "older_ms"};
  MC_TRY(json, parse_object(body, {"prefix", "tenant", "model", "older_ms", "all", "dry_run"}));
  // An empty object may be a client's mistake, and all blocks are much to lose by one.
  const bool has_condition =
      std::ranges::any_of(kConditions, [&](std::string_view field) { return !json[field].is_null(); });
  if (!json["all"].is_null() && !json["all"].is_bool()) return wrong("neither true nor false", "all");
  if (has_condition == json["all"].as_bool())
    return wrong(has_condition ? "all excludes prefix, tenant, model and older_ms"
                               : "nothing says which blocks to evict: give prefix, tenant, model or older_ms, or "
                                 "\"all\":true for all blocks",
                 has_condition ? "all" : "body");
  node::EvictBlocks order;
  if (!json["prefix"].is_null()) {
    MC_TRY(prefix, read_hash(json["prefix"]));
    order.filter.prefix = prefix;
  }
  MC_TRY(tenant, read_name(json, "tenant"));
  MC_TRY(model, read_name(json, "model"));
  order.filter.tenant = std::move(tenant), order.filter.model = std::move(model);
  if (!json["older_ms"].is_null()) {
    MC_TRY(older, read_time(json, "older_ms", node::BlockFilter::kOlderMax));
    order.filter.older = older;
  }
  const Json& dry_run = json["dry_run"];
  if (!dry_run.is_null() && !dry_run.is_bool()) return wrong("neither true nor false", "dry_run");
  order.dry_run = dry_run.as_bool();
  return order;
}

Result<node::PinBlocks> parse_pin(std::string_view body) {
  MC_TRY(json, parse_object(body, {"prefix", "for_ms", "durability"}));
  MC_TRY(prefix, read_hash(json["prefix"]));
  MC_TRY(time, read_time(json, "for_ms", node::PinBlocks::kTimeMax));
  const Json& level = json["durability"];
  const bool durable = level.is_string() && level.as_string() == "d2";
  if (!level.is_null() && !durable && !(level.is_string() && level.as_string() == "d0"))
    return wrong("neither \"d0\" nor \"d2\"", "durability");
  return node::PinBlocks{prefix, time, durable};
}

Result<node::UnpinBlocks> parse_unpin(std::string_view body) {
  MC_TRY(json, parse_object(body, {"prefix"}));
  MC_TRY(prefix, read_hash(json["prefix"]));
  return node::UnpinBlocks{prefix};
}

Result<node::ReadBlocks> parse_export(std::string_view query) {
  node::ReadBlocks order{.bytes_max = kStreamPartBytes};
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    query.remove_prefix(std::min(query.size(), end + 1));
    if (part.starts_with("prefix=")) {
      MC_TRY(prefix, read_hash(Json(part.substr(7))));
      order.prefix = prefix;
    } else if (part.starts_with("first=")) {
      const auto first = parse_u64(part.substr(6), 0, UINT32_MAX);
      if (!first) return wrong("not the number of a block", "first");
      order.first = static_cast<uint32_t>(*first);
    } else {
      return wrong("there is no \"" + std::string(part.substr(0, 100)) + "\"", "query");
    }
  }
  if (order.prefix.is_zero()) return wrong("no block is named: prefix=HASH", "prefix");
  return order;
}

BlockCalls::~BlockCalls() {
  for (const auto& [id, call] : waiting_)
    call.out.respond(http::error_response(err::kDraining, "the node is stopping"));
}

void BlockCalls::evict(const http::Request& request, const http::Responder& out) {
  auto order = parse_evict(request.body);
  if (!order) return out.respond(http::error_response(order.error()));
  begin(request, {out, nullptr}, std::move(*order));
}

void BlockCalls::pin(const http::Request& request, const http::Responder& out) {
  const auto order = parse_pin(request.body);
  if (!order) return out.respond(http::error_response(order.error()));
  begin(request, {out, nullptr}, *order);
}

void BlockCalls::unpin(const http::Request& request, const http::Responder& out) {
  const auto order = parse_unpin(request.body);
  if (!order) return out.respond(http::error_response(order.error()));
  begin(request, {out, nullptr}, *order);
}

void BlockCalls::give(const http::Request& request, const http::Responder& out) {
  const auto order = parse_export(request.query);
  if (!order) return out.respond(http::error_response(order.error()));
  begin(request, {out, nullptr}, *order);
}

/// The checks take about a millisecond for each part of a stream.
void BlockCalls::take(http::Request request, const http::Responder& out) {
  try {
    const FailsAlone alone;
    auto part = read_part(std::move(request.body));
    if (!part) return out.respond(http::error_response(part.error()));
    const auto shared = std::make_shared<const ReadPart>(std::move(*part));
    return begin(request, {out, shared}, shared->order);
  } catch (const std::bad_alloc&) {
    log_warn("import of blocks refused: not enough memory");
  }
  out.respond(http::error_response(err::kNotEnoughMemory, "there is not enough memory for this import; retry"));
}

/// The order has the time that the client gives it: x-mc-deadline-ms, else a minute.
void BlockCalls::begin(const http::Request& request, Call call, decltype(node::BlockOrder::what) what) {
  const auto left = ask_time_left(request, SystemClock::instance().now());
  const http::Responder out = call.out;
  if (!left) return out.respond(http::error_response(left.error()));
  try {
    const FailsAlone alone;
    loop_.post(
        [this, call = std::move(call), left = *left, what = std::move(what)](TimePoint now, node::Actions& actions) {
          const uint64_t id = ++count_;
          waiting_.emplace(id, call);
          worker_.handle(node::BlockOrder{id, after(now, left), what}, now, actions);
        });
    return;
  } catch (const std::bad_alloc&) {
    log_warn("order about blocks refused: not enough memory");
  }
  out.respond(http::error_response(err::kNotEnoughMemory, "there is not enough memory for this order; retry"));
}

PageMemory BlockCalls::memory() const {
  return [this](uint32_t shelf, kv::PageIndex page) { return pages_ + worker_.local_offset(shelf, page); };
}

void BlockCalls::end(uint64_t id, std::vector<uint32_t> rotten) {
  loop_.deliver(node::BlockOrder{id, kNever, node::EndOrder{std::move(rotten)}});
}

namespace {
Error damaged(const node::BlockRun& run, std::span<const uint32_t> rotten) {
  const kv::BlockMeta& first = run.blocks[rotten.front()];
  std::string next = "retry, for the disk may have the block; else send the prompt again, which computes it";
  if (!first.parent.is_zero()) next += "; or export the chain before it: --prefix " + first.parent.hex();
  return user_error(err::kChecksum,
                    std::to_string(rotten.size()) + " of the chain's blocks did not match their checksums and " +
                        (rotten.size() == 1 ? "was" : "were") + " dropped, first block " +
                        std::to_string(run.first + rotten.front()) + ", " + first.hash.hex(),
                    "prefix", std::move(next));
}
}  // namespace

/// The pages are leased until they are copied. A part has some megabytes: when memory runs out, only this one fails.
void BlockCalls::give_run(const node::BlockRun& run, uint64_t id) {
  const auto it = waiting_.find(id);
  http::Response response =
      http::error_response(err::kNotEnoughMemory, "there is not enough memory for this export; retry");
  std::vector<uint32_t> rotten;
  try {
    const FailsAlone alone;
    auto part = write_part(run, "mc-cache export", memory());
    if (!part) {
      if (part.error().mc == err::kChecksum) rotten = rotten_blocks(run, memory());
      response = http::operators_error(rotten.empty() ? part.error() : damaged(run, rotten));
    } else {
      response = {.status = 200, .headers = {{"Content-Type", "application/octet-stream"}}, .body = std::move(*part)};
      response.headers.push_back({std::string(kChainBlocksHeader), std::to_string(run.chain_blocks)});
    }
  } catch (const std::bad_alloc&) {
    log_warn("export of blocks refused: not enough memory");
  }
  end(id, std::move(rotten));
  if (it == waiting_.end()) return;
  it->second.out.respond(std::move(response));
  waiting_.erase(it);
}

Json BlockCalls::named() const {
  return Json::object({{"node", worker_.name().empty() ? title_ : worker_.name()}});
}

void BlockCalls::answer(node::OrderAnswer answer) {
  if (const auto* run = std::get_if<node::BlockRun>(&answer.what)) return give_run(*run, answer.id);
  const auto it = waiting_.find(answer.id);
  if (const auto* pages = std::get_if<node::PagesToFill>(&answer.what)) {
    MC_ASSERT(it != waiting_.end() && it->second.part);  // the order was given a moment ago
    it->second.part->fill(*pages, memory());
    return end(answer.id);
  }
  if (it == waiting_.end()) return;  // its client left while the answer was on its way
  const http::Responder out = std::move(it->second.out);
  waiting_.erase(it);
  if (const auto* error = std::get_if<Error>(&answer.what)) return out.respond(http::operators_error(*error));
  if (const auto* evicted = std::get_if<node::EvictReport>(&answer.what))
    return out.respond(ok(report_of(named(), *evicted)));
  if (const auto* pinned = std::get_if<node::PinReport>(&answer.what))
    return out.respond(ok(report_of(named(), *pinned)));
  if (const auto* written = std::get_if<node::WriteReport>(&answer.what))
    return out.respond(ok(report_of(named(), *written)));
  const auto* unpinned = std::get_if<node::UnpinReport>(&answer.what);
  MC_ASSERT(unpinned != nullptr);
  out.respond(ok(report_of(named(), *unpinned)));
}

void BlockCalls::drop_gone(TimePoint now, node::Actions& out) {
  std::vector<uint64_t> gone;
  for (const auto& [id, call] : waiting_)
    if (!call.out.is_open()) gone.push_back(id);
  for (const uint64_t id : gone) {
    waiting_.erase(id);
    worker_.handle(node::BlockOrder{id, now, node::CancelOrder{}}, now, out);
  }
}

}  // namespace mc::host
