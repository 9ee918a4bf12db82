#include "host/block_lookup.h"

#include <string>

#include "base/assert.h"
#include "base/errors.h"
#include "base/json.h"
#include "http/server.h"
#include "wire/block_index.h"

namespace mc::host {
namespace {

constexpr size_t kLookupBodyMax = size_t{64} << 10;

Error wrong_lookup(std::string what, std::string field) {
  return user_error(err::kInvalidField, std::move(what), std::move(field));
}

}  // namespace

Result<std::vector<BlockHash>> parse_lookup(std::string_view body) {
  auto json = Json::parse(body, {.bytes = kLookupBodyMax, .depth = 2, .values = wire::kLookupBlocksMax + 64});
  if (!json) return wrong_lookup("the body is not JSON: " + json.error().what, "body");
  if (!json->is_object()) return wrong_lookup("the body is not a JSON object", "body");
  for (const JsonMember& member : json->members())
    if (member.key != "hashes") return wrong_lookup("there is no field \"" + member.key.substr(0, 100) + "\"", "body");
  const Json& hashes = (*json)["hashes"];
  if (!hashes.is_array() || hashes.size() == 0 || hashes.size() > wire::kLookupBlocksMax)
    return wrong_lookup("not a list of 1 to " + std::to_string(wire::kLookupBlocksMax) + " block ids", "hashes");
  std::vector<BlockHash> out;
  for (const Json& hash : hashes.items()) {
    const auto id = Id128::from_hex(hash.as_string());
    if (!hash.is_string() || !id || id->is_zero())
      return wrong_lookup("not the id of a block: 32 hex digits, as mc-cache ls prints", "hashes");
    out.push_back(BlockHash{*id});
  }
  return out;
}

http::Response answer_lookup(const http::Request& request, const kv::BlockTable& table) {
  const auto hashes = parse_lookup(request.body);
  if (!hashes) return http::error_response(hashes.error());
  Json tiers = Json::array();
  uint64_t held = 0, leading = 0;
  bool is_leading = true;
  for (const wire::HeldIn where : table.find(*hashes)) {
    const bool is_held = where != wire::HeldIn::none;
    is_leading = is_leading && is_held;
    held += is_held, leading += is_leading;
    tiers.push(Json(wire::to_string(where)));
  }
  MC_ASSERT_EQ(tiers.size(), hashes->size());
  MC_ASSERT(leading <= held && held <= hashes->size());
  Json body = Json::object({{"blocks", hashes->size()}, {"held", held}, {"leading", leading}});
  body.set("tiers", std::move(tiers));
  return {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = body.dump()};
}

}  // namespace mc::host
