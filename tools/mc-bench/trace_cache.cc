// `mc-bench trace cache FILE`: the hit rate of one cache under each replacement rule.
// The rules are lib/sim's; `pool` is the cache that serves, lib/kv's page pool with its own eviction.

#include "kv/trace_cache.h"

#include "base/errors.h"
#include "sim/lru.h"
#include "sim/replacement.h"
#include "trace.h"
#include "trace_reuse.h"

namespace mc::bench {
namespace {

Result<std::vector<uint32_t>> pool_leading(const std::vector<TraceRequest>& trace, uint64_t size) {
  const bool unlimited = size == sim::kUnlimitedBlocks;
  if (!unlimited && size >= UINT32_MAX)
    return user_error(err::kBadValue, "--blocks is " + std::to_string(size) + "; the pool has at most 4294967294",
                      "--blocks", "leave --blocks out for no limit");
  kv::TraceCache cache(unlimited ? kv::TraceCache::kUnlimited : static_cast<uint32_t>(size));
  std::vector<uint32_t> out;
  for (const TraceRequest& r : trace) out.push_back(cache.request(r.hash_ids));
  return out;
}

Error unknown(const std::string& name) {
  std::string known;
  for (const sim::Replacement& r : sim::replacements()) known += std::string(r.name) + ", ";
  return user_error(err::kBadValue, "there is no policy '" + name + "' of a cache; there are: " + known + "pool",
                    "--policy");
}

}  // namespace

Result<Json> trace_caches(const std::vector<TraceRequest>& trace, const std::vector<std::string>& policies,
                          const std::vector<uint64_t>& sizes) {
  const sim::TraceBlocks blocks(trace);
  Json out = Json::array();
  for (const std::string& name : policies) {
    const sim::Replacement* replacement = sim::find_replacement(name);
    if (replacement == nullptr && name != "pool") return unknown(name);
    for (const uint64_t size : sizes) {
      std::vector<uint32_t> leading;
      if (replacement != nullptr) {
        leading = sim::replay_cache(blocks, size, *replacement);
      } else {
        MC_TRY(runs, pool_leading(trace, size));
        leading = std::move(runs);
      }
      Json row = Json::object({{"policy", name}});
      row.set("cache_blocks", size == sim::kUnlimitedBlocks ? Json() : Json(size));
      const Json shares = Reuse(trace, leading).shares();
      for (const JsonMember& member : shares.members()) row.set(member.key, member.value);
      out.push(std::move(row));
    }
  }
  return out;
}

}  // namespace mc::bench
