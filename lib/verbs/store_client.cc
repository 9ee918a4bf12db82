#include "verbs/store_client.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/assert.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/units.h"
#include "verbs/ask.h"
#include "wire/value_group.h"

namespace mc::verbs {
namespace {

constexpr size_t kAnswerMax = (size_t{64} << 20) + door::kStoreBatchLineMax;

uint32_t sum(std::string_view bytes) {
  return crc32c({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

/// Every byte that a path or a query could read otherwise as %XX (RFC 3986, section 2.1).
std::string escaped(std::string_view text) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~';
    if (plain) {
      out += c;
    } else {
      const auto byte = static_cast<uint8_t>(c);
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

std::string time_text(Duration time) {
  MC_ASSERT(time >= Duration{});  // flags take no other
  return std::to_string(time.count()) + "ns";
}

std::string durability_name(const node::ValueTerms& terms) {
  return std::string(node::kDurabilityNames[static_cast<size_t>(terms.durability)]);
}

constexpr std::string_view kCompareVersions = "compare the versions of the node and of this program";

Result<Json> read_json(std::string_view text, const std::string& place) {
  auto json = Json::parse(text);
  if (json) return json;
  return user_error(err::kPeerGarbage, "the answer is not JSON: " + json.error().what, place,
                    std::string(kCompareVersions));
}

/// The outcome of a put, copy or move. Any other text of a server does not reach the terminal.
Result<StoreClient::PutResult> outcome_of(const Json& answer, const std::string& place) {
  const auto& names = door::kPutResultNames;
  const auto found = std::ranges::find(names, answer["outcome"].as_string());
  if (found != std::end(names)) return static_cast<StoreClient::PutResult>(found - std::begin(names));
  return user_error(err::kPeerGarbage, "the answer does not say whether the value was created or replaced", place,
                    std::string(kCompareVersions));
}

Error damaged(std::string_view key, const std::string& place) {
  return user_error(err::kChecksum, "the value of " + std::string(key) + " does not match its checksum", place,
                    "get it again; if that fails too, put it again");
}

}  // namespace

Result<std::unique_ptr<StoreClient>> StoreClient::open(std::string place, Options options) {
  MC_TRY(client, http::Client::open(place, {.body_bytes_max = kAnswerMax}));
  return std::unique_ptr<StoreClient>(new StoreClient(std::move(place), std::move(options), std::move(client)));
}

/// The error that the node sent, with the node's next step.
Error StoreClient::told(const Json& error, int status, const std::string& target) const {
  Error out = told_error(Json::object({{"error", error}}), status, place_ + target);
  if (const std::string_view next = error["next"].as_string(); !next.empty()) out.next = std::string(next);
  return out;
}

/// The answer below 300; an error for every other one.
Result<http::ClientOutcome> StoreClient::call(http::Method method, std::string_view key, const Query& query,
                                              std::string body, http::Headers headers, std::string_view lent) {
  std::string target = "/v1/store" + (key.empty() ? "" : "/" + escaped(key));
  char mark = '?';
  const auto add = [&](std::string_view name, std::string_view value) {
    target += std::exchange(mark, '&') + std::string(name) + "=" + escaped(value);
  };
  if (!options_.tenant.empty()) add("tenant", options_.tenant);
  for (const auto& [name, value] : query) add(name, value);
  headers.insert(headers.end(), options_.headers.begin(), options_.headers.end());
  std::optional<http::ClientOutcome> outcome;
  const TimePoint deadline = SystemClock::instance().now() + options_.timeout;
  client_->start({method, target, std::move(headers), std::move(body), deadline, lent},
                 {{}, {}, [&](http::ClientOutcome&& ended) { outcome = std::move(ended); }});
  client_->run();
  MC_ASSERT(outcome.has_value());
  if (!outcome->status)
    return user_error(err::kPeerUnreachable, "no answer: " + outcome->status.error().what, place_ + target,
                      "mc-conductor ps lists the nodes and their addresses");
  if (outcome->http_status < 300) return std::move(*outcome);
  const auto json = Json::parse(outcome->body);
  if (!json && outcome->http_status == 404)  // the answer to HEAD has no body
    return user_error(err::kNotFound, "there is no value " + std::string(key), place_ + target);
  return told(json ? (*json)["error"] : Json(), outcome->http_status, target);
}

Result<StoreClient::PutResult> StoreClient::put(std::string_view key, std::string_view value,
                                                const node::ValueTerms& terms) {
  return put_as(key, value, terms, {});
}

Result<StoreClient::PutResult> StoreClient::put_group(std::string_view key, const std::vector<Member>& members,
                                                      const node::ValueTerms& terms) {
  std::vector<wire::GroupMember> rows;
  for (const Member& member : members) rows.push_back({.name = member.name, .bytes = member.value});
  const auto value = wire::encode_group(std::move(rows));
  if (!value) return user_error(err::kInvalidField, value.error().what, std::string(key));
  return put_as(key, *value, terms, {{"group", "true"}});
}

Result<StoreClient::PutResult> StoreClient::put_as(std::string_view key, std::string_view value,
                                                   const node::ValueTerms& terms, Query query) {
  MC_ASSERT(!key.empty());  // here and below: the empty key stands for all keys
  if (terms.ttl < Duration::max()) query.emplace_back("ttl", time_text(terms.ttl));
  if (terms.pin > Duration{}) query.emplace_back("pin", time_text(terms.pin));
  if (terms.replaces) query.emplace_back("replace", "true");
  if (terms.durability != node::Durability::d0) query.emplace_back("durability", durability_name(terms));
  if (terms.copies != 1) query.emplace_back("replicas", std::to_string(terms.copies));
  MC_TRY(outcome, call(http::Method::put, key, query, {},
                       {{std::string(door::kStoreCrcHeader), door::crc_text(sum(value))}}, value));
  MC_TRY(json, read_json(outcome.body, place_));
  return outcome_of(json, place_);
}

/// Goes on with the next of the other nodes; false when there is none.
bool StoreClient::leave_place() {
  if (options_.find_others) others_ = std::exchange(options_.find_others, {})();
  while (!others_.empty()) {
    std::string next = std::move(others_.front());
    others_.erase(others_.begin());
    auto opened = open(std::move(next), options_);
    if (!opened) continue;
    place_ = std::move((*opened)->place_);
    client_ = std::move((*opened)->client_);
    return true;
  }
  return false;
}

Result<http::ClientOutcome> StoreClient::get_anywhere(std::string_view key, const Query& query) {
  MC_ASSERT(!key.empty());
  for (;;) {
    auto outcome = call(http::Method::get, key, query, {});
    if (outcome || outcome.error().mc != err::kPeerUnreachable || !leave_place()) return outcome;
  }
}

/// The bytes of the answer, which match their checksum.
Result<std::string> StoreClient::get_summed(std::string_view key, const Query& query,
                                            std::optional<door::ValueTier>* tier) {
  MC_TRY(outcome, get_anywhere(key, query));
  if (tier) *tier = door::value_tier_from(http::find_header(outcome.headers, door::kStoreTierHeader));
  const auto crc = door::parse_crc(http::find_header(outcome.headers, door::kStoreCrcHeader));
  if (!crc)
    return user_error(err::kPeerGarbage,
                      "the value of " + std::to_string(outcome.body.size()) +
                          " bytes came without its checksum, the header " + std::string(door::kStoreCrcHeader),
                      place_, std::string(kCompareVersions));
  if (*crc != sum(outcome.body)) return damaged(key, place_);
  return std::move(outcome.body);
}

Result<std::string> StoreClient::get(std::string_view key, Duration lease) {
  Query query;
  if (lease > Duration{}) query.emplace_back("lease", time_text(lease));
  return get_summed(key, query);
}

Result<void> StoreClient::get(Item& item) {
  MC_TRY(value, get_summed(item.key, {}, &item.tier));
  item.value = std::move(value);
  return {};
}

Result<std::vector<StoreClient::Member>> StoreClient::get_group(std::string_view key, Duration lease) {
  MC_TRY(value, get(key, lease));
  const auto members = wire::parse_group(value);
  if (!members) return user_error(err::kInvalidField, members.error().what, std::string(key));
  std::vector<Member> out;
  for (const wire::GroupMember& member : *members) {
    if (member.crc != sum(member.bytes)) return damaged(std::string(key) + "/" + std::string(member.name), place_);
    out.push_back({std::string(member.name), std::string(member.bytes)});
  }
  return out;
}

Result<std::string> StoreClient::get_member(std::string_view key, std::string_view name, Duration lease) {
  Query query{{"member", std::string(name)}};
  if (lease > Duration{}) query.emplace_back("lease", time_text(lease));
  return get_summed(key, query);
}

Result<Json> StoreClient::list_members(std::string_view key) {
  MC_TRY(outcome, get_anywhere(key, {{"members", "true"}}));
  return read_json(outcome.body, place_);
}

Result<std::optional<uint64_t>> StoreClient::exist(std::string_view key) {
  for (;;) {
    auto bytes = exist_here(key);
    if (bytes || bytes.error().mc != err::kPeerUnreachable || !leave_place()) return bytes;
  }
}

Result<std::optional<uint64_t>> StoreClient::exist_here(std::string_view key) {
  MC_ASSERT(!key.empty());
  const auto outcome = call(http::Method::head, key, {}, {});
  if (!outcome && outcome.error().mc == err::kNotFound) return std::optional<uint64_t>();
  if (!outcome) return outcome.error();
  const auto bytes = parse_u64(http::find_header(outcome->headers, "content-length"));
  if (bytes) return std::optional(*bytes);
  return user_error(err::kPeerGarbage, "the answer has no size of " + std::string(key), place_,
                    std::string(kCompareVersions));
}

Result<StoreClient::PutResult> StoreClient::relocate(std::string_view op, std::string_view from, std::string_view to,
                                                     bool replaces) {
  MC_ASSERT(!from.empty() && !to.empty());
  MC_TRY(outcome,
         call(http::Method::post, from,
              {{"op", std::string(op)}, {"to", std::string(to)}, {"replace", replaces ? "true" : "false"}}, {}));
  MC_TRY(json, read_json(outcome.body, place_));
  return outcome_of(json, place_);
}

Result<StoreClient::PutResult> StoreClient::copy(std::string_view from, std::string_view to, bool replaces) {
  return relocate("copy", from, to, replaces);
}

Result<StoreClient::PutResult> StoreClient::move(std::string_view from, std::string_view to, bool replaces) {
  return relocate("move", from, to, replaces);
}

Result<Json> StoreClient::list(std::string_view prefix, std::string_view after, size_t limit) {
  MC_ASSERT(limit > 0);
  Query query{{"limit", std::to_string(limit)}};
  if (!prefix.empty()) query.emplace_back("prefix", prefix);
  if (!after.empty()) query.emplace_back("after", after);
  MC_TRY(outcome, call(http::Method::get, {}, query, {}));
  return read_json(outcome.body, place_);
}

/// The result of the operation of each item. Items whose operation failed get its error. `answered` gets the part of
/// the answer behind its first line, where values are.
Result<std::vector<Json>> StoreClient::batch(std::vector<Item>& items, Json ops, std::string values,
                                             std::string& answered) {
  MC_ASSERT(ops.is_array());
  const size_t count = ops.size();
  MC_ASSERT_EQ(count, items.size());
  std::string body = Json::object({{"ops", std::move(ops)}}).dump() + "\n" + values;
  MC_TRY(outcome, call(http::Method::post, {}, {}, std::move(body)));
  const size_t line_end = outcome.body.find('\n');
  MC_TRY(json, read_json(std::string_view(outcome.body).substr(0, line_end), place_));
  const std::span<const Json> results = json["results"].items();
  if (line_end == std::string::npos || results.size() != count)
    return user_error(err::kPeerGarbage,
                      "the answer to a batch of " + std::to_string(count) + " operations has " +
                          std::to_string(results.size()) + " results",
                      place_);
  MC_ASSERT_LT(line_end, outcome.body.size());
  answered = outcome.body.substr(line_end + 1);
  for (size_t i = 0; i < items.size(); ++i)
    if (const Json* error = results[i].find("error"))
      items[i].error = told(*error, static_cast<int>(results[i]["status"].as_int()), "/v1/store/" + items[i].key);
  return std::vector<Json>(results.begin(), results.end());
}

Result<void> StoreClient::put_all(std::vector<Item>& items, const node::ValueTerms& terms) {
  Json ops = Json::array();
  std::string values, answered;
  for (const Item& item : items) {
    Json op = Json::object({{"op", "put"}, {"key", item.key}, {"bytes", item.value.size()}});
    op.set("crc32c", door::crc_text(sum(item.value))).set("replace", terms.replaces);
    if (terms.ttl < Duration::max()) op.set("ttl", time_text(terms.ttl));
    if (terms.pin > Duration{}) op.set("pin", time_text(terms.pin));
    if (terms.durability != node::Durability::d0) op.set("durability", durability_name(terms));
    if (terms.copies != 1) op.set("replicas", terms.copies);
    ops.push(std::move(op));
    values += item.value;
  }
  MC_CHECK(batch(items, std::move(ops), std::move(values), answered));
  return {};
}

Result<void> StoreClient::get_all(std::vector<Item>& items) {
  Json ops = Json::array();
  for (const Item& item : items) ops.push(Json::object({{"op", "get"}, {"key", item.key}}));
  std::string answered;
  MC_TRY(results, batch(items, std::move(ops), {}, answered));
  std::string_view rest = answered;
  for (size_t i = 0; i < items.size(); ++i) {
    if (results[i].has("error")) continue;
    const auto bytes = static_cast<uint64_t>(results[i]["bytes"].as_int());
    if (bytes > rest.size())
      return user_error(err::kPeerGarbage, "the answer to a batch ends in the value of " + items[i].key, place_);
    items[i].value = std::string(rest.substr(0, static_cast<size_t>(bytes)));
    items[i].tier = door::value_tier_from(results[i]["tier"].as_string());
    rest.remove_prefix(items[i].value.size());
    const auto crc = door::parse_crc(results[i]["crc32c"].as_string());
    if (!crc || *crc != sum(items[i].value)) items[i].error = damaged(items[i].key, place_);
  }
  if (!rest.empty()) return user_error(err::kPeerGarbage, "the answer to a batch has bytes behind its values", place_);
  return {};
}

Result<std::vector<Json>> StoreClient::do_all(std::vector<Item>& items, const Json& op) {
  Json ops = Json::array();
  for (const Item& item : items) ops.push(Json(op).set("key", item.key));
  std::string answered;
  return batch(items, std::move(ops), {}, answered);
}

Result<void> StoreClient::exist_all(std::vector<Item>& items) {
  MC_TRY(results, do_all(items, Json::object({{"op", "exist"}})));
  for (size_t i = 0; i < items.size(); ++i) {
    Item& item = items[i];
    item.bytes.reset();
    if (item.error && item.error->mc == err::kNotFound)
      item.error.reset();
    else if (!item.error)
      item.bytes = static_cast<uint64_t>(std::max<int64_t>(0, results[i]["bytes"].as_int()));
  }
  return {};
}

Result<void> StoreClient::remove_all(std::vector<Item>& items, bool forced) {
  Json op = Json::object({{"op", "remove"}});
  if (forced) op.set("force", true);
  MC_CHECK(do_all(items, op));
  return {};
}

Result<void> StoreClient::pin_all(std::vector<Item>& items, Duration time) {
  MC_CHECK(do_all(items, Json::object({{"op", "pin"}, {"for", time_text(time)}})));
  return {};
}

Result<void> StoreClient::unpin_all(std::vector<Item>& items) {
  MC_CHECK(do_all(items, Json::object({{"op", "unpin"}})));
  return {};
}

}  // namespace mc::verbs
