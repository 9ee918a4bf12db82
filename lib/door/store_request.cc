#include "door/store_request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "base/assert.h"
#include "base/errors.h"
#include "base/json.h"
#include "base/units.h"
#include "wire/value_group.h"

namespace mc::door {
namespace {

constexpr std::array<std::string_view, 8> kVerbNames = {"put", "get",   "exist", "remove",
                                                        "pin", "unpin", "copy",  "move"};
constexpr std::array<std::string_view, 3> kTierNames = {"memory", "disk", "remote"};
constexpr size_t kQueryMax = 8192;
constexpr size_t kTenantBytesMax = 64;

Error bad_field(std::string_view field, std::string what) {
  return user_error(err::kInvalidField, std::string(field) + " " + std::move(what), std::string(field));
}

/// The fields of a query or of a batch's line as texts: one way to read both.
class StoreFields {
 public:
  /// "ttl=10m&prefix=a%20b". Every name occurs once.
  static Result<StoreFields> of_query(std::string_view query) {
    if (query.size() > kQueryMax) return bad_field("query", "is longer than " + std::to_string(kQueryMax) + " bytes");
    StoreFields out;
    while (!query.empty()) {
      const std::string_view part = query.substr(0, query.find('&'));
      query.remove_prefix(std::min(query.size(), part.size() + 1));
      if (part.empty()) continue;
      const size_t equal = part.find('=');
      const std::string name(part.substr(0, std::min<size_t>(equal, 32)));
      if (equal == std::string_view::npos) return bad_field(name, "has no value in the query: write name=value");
      auto value = http::decode_path(part.substr(equal + 1));
      if (!value) return bad_field(name, "cannot be read: " + value.error().what);
      if (!out.values_.emplace(name, std::move(*value)).second) return bad_field(name, "occurs twice");
    }
    return out;
  }
  /// Numbers and truth values count as their texts.
  static Result<StoreFields> of_json(const Json& object) {
    if (!object.is_object()) return bad_field("ops", "has an element that is no object");
    StoreFields out;
    for (const JsonMember& member : object.members()) {
      const bool is_plain = member.value.is_int() || member.value.is_bool();
      if (!is_plain && !member.value.is_string())
        return bad_field(member.key.substr(0, 32), "is a " + std::string(member.value.kind_name()));
      out.values_.emplace(member.key, is_plain ? member.value.dump() : std::string(member.value.as_string()));
    }
    return out;
  }

  /// The text, which is then known; nothing when it is absent.
  std::optional<std::string> take(std::string_view name) {
    const auto it = values_.find(name);
    if (it == values_.end()) return std::nullopt;
    std::string value = std::move(it->second);
    values_.erase(it);
    return value;
  }
  /// A time above 0 and within kStoreTimeMax; `otherwise` when it is absent.
  Result<Duration> time(std::string_view name, Duration otherwise) {
    const auto text = take(name);
    if (!text) return otherwise;
    const auto time = parse_duration(*text);
    if (!time) return bad_field(name, "is no time such as 30s or 10m");
    if (*time <= Duration{} || *time > kStoreTimeMax) return bad_field(name, "is not above 0 and at most a year");
    return *time;
  }
  Result<bool> flag(std::string_view name) {
    const auto text = take(name);
    if (!text) return false;
    if (*text == "true" || *text == "1") return true;
    if (*text == "false" || *text == "0") return false;
    return bad_field(name, "is neither true nor false");
  }
  Result<node::Durability> durability() {
    const auto text = take("durability");
    if (!text) return node::Durability::d0;
    const auto found = std::find(std::begin(node::kDurabilityNames), std::end(node::kDurabilityNames), *text);
    if (found != std::end(node::kDurabilityNames))
      return static_cast<node::Durability>(found - std::begin(node::kDurabilityNames));
    return bad_field("durability", "is not d0, d1, d2 or d3");
  }
  /// Refuses what was not taken: a misspelt name would be without effect.
  Result<void> end() const {
    if (values_.empty()) return {};
    return bad_field(values_.begin()->first.substr(0, 32), "is not a field of this operation");
  }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

/// Whether the value of a put is a whole group whose members have names that are keys.
Result<void> check_group(std::string_view value) {
  const auto members = wire::parse_group(value);
  if (!members) return bad_field("group", "is true, but " + members.error().what);
  for (const wire::GroupMember& member : *members)
    if (const auto named = node::check_value_key(member.name); !named)
      return bad_field("group", "has a member whose name is no key: " + named.error().what);
  return {};
}

Result<void> read_get(StoreFields& fields, StoreOp& op) {
  MC_TRY(lease, fields.time("lease", Duration{}));
  MC_TRY(lists_members, fields.flag("members"));
  op.lease = lease, op.lists_members = lists_members;
  const auto member = fields.take("member");
  if (!member) return {};
  if (member->empty() || lists_members) return bad_field("member", "is the name of one member of a group");
  op.member = *member;
  MC_ASSERT(op.verb == StoreVerb::get && !op.lists_members);
  return {};
}

/// The fields of an operation whose verb and key are known.
Result<void> read_terms(StoreFields& fields, StoreOp& op) {
  MC_CHECK(node::check_value_key(op.key));
  if (op.verb == StoreVerb::put) {
    MC_TRY(ttl, fields.time("ttl", Duration::max()));
    MC_TRY(pin, fields.time("pin", Duration{}));
    MC_TRY(durability, fields.durability());
    op.terms.ttl = ttl, op.terms.pin = pin, op.terms.durability = durability;
    if (const auto text = fields.take("replicas")) {
      const auto copies = parse_u64(*text, 1, wire::kReplicasMax);
      if (!copies) return bad_field("replicas", "is not 1 to " + std::to_string(wire::kReplicasMax));
      op.terms.copies = static_cast<uint32_t>(*copies);
    }
    MC_TRY(is_group, fields.flag("group"));
    if (is_group) MC_CHECK(check_group(op.value));
  } else if (op.verb == StoreVerb::remove) {
    MC_TRY(forced, fields.flag("force"));
    op.forced = forced;
  } else if (op.verb == StoreVerb::get) {
    MC_CHECK(read_get(fields, op));
  } else if (op.verb == StoreVerb::pin) {
    MC_TRY(pin, fields.time("for", Duration{}));
    if (pin == Duration{}) return bad_field("for", "is missing: the time for which the value is pinned");
    op.pin = pin;
  } else if (op.verb == StoreVerb::copy || op.verb == StoreVerb::move) {
    op.to = fields.take("to").value_or("");
    if (op.to.empty()) return bad_field("to", "is missing: the new key");
    MC_CHECK(node::check_value_key(op.to));
  }
  if (op.verb == StoreVerb::put || op.verb == StoreVerb::copy || op.verb == StoreVerb::move) {
    MC_TRY(replaces, fields.flag("replace"));
    op.terms.replaces = replaces;
  }
  return fields.end();
}

Result<StoreVerb> verb_from(std::string_view name) {
  const auto found = std::find(kVerbNames.begin(), kVerbNames.end(), name);
  if (found == kVerbNames.end())
    return bad_field("op", "\"" + std::string(name.substr(0, 32)) + "\" is not put, get, exist, remove, pin, unpin, " +
                               "copy or move");
  return static_cast<StoreVerb>(found - kVerbNames.begin());
}

/// One operation of a batch. `rest` begins with the values of the puts that are left.
Result<StoreOp> read_batch_op(const Json& object, std::string_view& rest) {
  MC_TRY(fields, StoreFields::of_json(object));
  StoreOp op;
  MC_TRY(verb, verb_from(fields.take("op").value_or("")));
  op.verb = verb;
  op.key = fields.take("key").value_or("");
  if (op.verb == StoreVerb::put) {
    const auto bytes = parse_u64(fields.take("bytes").value_or(""));
    if (!bytes) return bad_field("bytes", "of a put is missing or no number");
    if (*bytes > rest.size())
      return bad_field("bytes", "of a put is " + std::to_string(*bytes) + ", and " + std::to_string(rest.size()) +
                                    " bytes of values are left in the body");
    op.value = rest.substr(0, static_cast<size_t>(*bytes));
    rest.remove_prefix(op.value.size());
    MC_ASSERT_EQ(op.value.size(), *bytes);
    if (const auto text = fields.take("crc32c")) {
      MC_TRY(crc, parse_crc(*text));
      op.crc = crc;
    }
  }
  MC_CHECK(read_terms(fields, op));
  if (!op.member.empty() || op.lists_members)
    return bad_field("member", "is not a field of a batch: get the group, or its member alone");
  return op;
}

}  // namespace

std::string_view to_string(ValueTier tier) {
  return kTierNames[static_cast<size_t>(tier)];
}

std::optional<ValueTier> value_tier_from(std::string_view word) {
  const auto found = std::find(kTierNames.begin(), kTierNames.end(), word);
  if (found == kTierNames.end()) return std::nullopt;
  return static_cast<ValueTier>(found - kTierNames.begin());
}

std::string crc_text(uint32_t crc) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out(8, '0');
  for (size_t i = 8; i > 0; --i, crc >>= 4) out[i - 1] = kDigits[crc & 15];
  MC_ASSERT_EQ(crc, 0u);  // all of it is in the text
  return out;
}

Result<uint32_t> parse_crc(std::string_view text) {
  uint32_t crc = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (text.size() != 8 || error != std::errc() || end != text.data() + text.size())
    return bad_field("crc32c", "is not 8 hexadecimal digits");
  return crc;
}

Result<std::optional<std::string>> store_tenant(std::string_view query) {
  MC_TRY(fields, StoreFields::of_query(query));
  std::optional<std::string> tenant = fields.take("tenant");
  if (tenant && (tenant->empty() || tenant->size() > kTenantBytesMax))
    return bad_field("tenant", "has not 1 to 64 bytes");
  return tenant;
}

Result<StoreOp> parse_store_op(const http::Request& request, std::string_view key) {
  using http::Method;
  MC_TRY(fields, StoreFields::of_query(request.query));
  (void)fields.take("tenant");  // store_tenant() has it
  StoreOp op;
  op.key = std::string(key);
  if (request.method == Method::post) {
    MC_TRY(verb, verb_from(fields.take("op").value_or("")));
    if (verb < StoreVerb::pin) return bad_field("op", "of a POST is pin, unpin, copy or move");
    op.verb = verb;
  } else {
    op.verb = request.method == Method::put    ? StoreVerb::put
              : request.method == Method::del  ? StoreVerb::remove
              : request.method == Method::head ? StoreVerb::exist
                                               : StoreVerb::get;
  }
  if (op.verb == StoreVerb::put) {
    op.value = request.body;
    if (const std::string_view text = http::find_header(request.headers, kStoreCrcHeader); !text.empty()) {
      MC_TRY(crc, parse_crc(text));
      op.crc = crc;
    }
  } else if (!request.body.empty()) {
    return bad_field("body", "of " + std::to_string(request.body.size()) + " bytes: only PUT has one");
  }
  MC_CHECK(read_terms(fields, op));
  return op;
}

Result<StoreListing> parse_store_listing(std::string_view query) {
  MC_TRY(fields, StoreFields::of_query(query));
  (void)fields.take("tenant");
  StoreListing out;
  out.prefix = fields.take("prefix").value_or("");
  out.after = fields.take("after").value_or("");
  if (const auto text = fields.take("limit")) {
    const auto limit = parse_u64(*text, 1, kStoreListMax);
    if (!limit) return bad_field("limit", "is not 1 to " + std::to_string(kStoreListMax));
    out.limit = static_cast<size_t>(*limit);
  }
  MC_CHECK(fields.end());
  return out;
}

Result<std::vector<StoreOp>> parse_store_batch(std::string_view body) {
  const size_t line_end = body.find('\n');
  if (line_end > kStoreBatchLineMax)
    return bad_field("ops", "is not one line of at most " + format_bytes(kStoreBatchLineMax) + " with an end of line");
  auto line = Json::parse(body.substr(0, line_end), {.bytes = kStoreBatchLineMax, .depth = 4, .values = 16'384});
  if (!line) return user_error(err::kMalformedJson, "the first line of a batch: " + line.error().what);
  if (!line->is_object() || line->size() != 1 || !(*line)["ops"].is_array())
    return bad_field("ops", "is missing: a batch is {\"ops\":[...]}");
  const std::span<const Json> objects = (*line)["ops"].items();
  if (objects.empty() || objects.size() > kStoreBatchMax)
    return bad_field("ops", "has " + std::to_string(objects.size()) + " operations; a batch has 1 to " +
                                std::to_string(kStoreBatchMax));
  std::string_view rest = body.substr(line_end + 1);
  std::vector<StoreOp> out;
  for (size_t i = 0; i < objects.size(); ++i) {
    auto op = read_batch_op(objects[i], rest);
    if (!op) return within("ops[" + std::to_string(i) + "]", std::move(op).error());
    out.push_back(std::move(*op));
  }
  if (!rest.empty())
    return bad_field("body", "has " + std::to_string(rest.size()) + " bytes more than the puts of the batch");
  MC_ASSERT_EQ(out.size(), objects.size());
  return out;
}

}  // namespace mc::door
