// Sharing of blocks in a trace: popularity of blocks, sessions, parents, distances between uses.

#include <algorithm>
#include <functional>
#include <map>

#include "sim/sharing.h"
#include "trace_reuse.h"

namespace mc::bench {
namespace {

double share(uint64_t part, uint64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

/// The hottest blocks as runs of consecutive ids with equal uses, most used first.
Json hottest(const std::vector<TraceRequest>& trace, const sim::TraceBlocks& blocks, const sim::Sharing& sharing) {
  constexpr size_t kRuns = 12;
  std::map<uint64_t, uint64_t> uses;
  for (size_t r = 0; r < trace.size(); ++r)
    for (size_t i = 0; i < trace[r].hash_ids.size(); ++i) uses[trace[r].hash_ids[i]] = sharing.uses[blocks.of(r)[i]];
  struct Run {
    uint64_t first, last, uses;
  };
  std::vector<Run> runs;
  for (const auto& [id, count] : uses) {
    if (!runs.empty() && runs.back().last + 1 == id && runs.back().uses == count)
      runs.back().last = id;
    else
      runs.push_back({id, id, count});
  }
  std::stable_sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.uses > b.uses; });
  runs.resize(std::min(runs.size(), kRuns));
  Json out = Json::array();
  for (const Run& run : runs)
    out.push(Json::object({{"first_id", run.first}, {"last_id", run.last}, {"uses", run.uses}}));
  return out;
}

Json popularity(const std::vector<uint64_t>& uses) {
  std::vector<uint64_t> ranked = uses;
  std::sort(ranked.begin(), ranked.end(), std::greater<>());
  const auto between = [&](uint64_t low, uint64_t high) {
    const auto in = [&](uint64_t count) { return count >= low && count <= high; };
    return static_cast<uint64_t>(std::count_if(ranked.begin(), ranked.end(), in));
  };
  Json out = Json::object({{"unique_blocks", ranked.size()}});
  out.set("used_once", share(between(1, 1), ranked.size())).set("used_twice", share(between(2, 2), ranked.size()));
  out.set("used_3_times", share(between(3, 3), ranked.size()));
  out.set("used_4_to_10_times", share(between(4, 10), ranked.size()));
  out.set("used_more", share(between(11, UINT64_MAX), ranked.size()));
  out.set("used_over_100_times", between(101, UINT64_MAX));
  out.set("most_used", ranked.empty() ? uint64_t{0} : ranked.front());
  Json at_rank = Json::object(), top = Json::object();
  for (uint64_t rank : {1, 2, 10, 20, 100, 200, 500, 1000, 2000, 5000, 10000, 20000})
    if (rank <= ranked.size()) at_rank.set(std::to_string(rank), ranked[rank - 1]);
  uint64_t hits = 0, here = 0;
  for (uint64_t count : ranked) hits += count - 1;
  for (size_t i = 0; i < ranked.size(); ++i) {
    here += ranked[i] - 1;
    for (size_t rank : {1, 10, 100, 1000, 10000})
      if (i + 1 == rank) top.set(std::to_string(rank), share(here, hits));
  }
  return std::move(out.set("uses_at_rank", std::move(at_rank)).set("hit_share_of_top", std::move(top)));
}

Json sessions(const sim::Sharing& sharing, size_t requests) {
  const std::vector<uint64_t>& sizes = sharing.session_sizes;
  const auto between = [&](uint64_t low, uint64_t high) {
    const auto in = [&](uint64_t size) { return size >= low && size <= high; };
    return static_cast<uint64_t>(std::count_if(sizes.begin(), sizes.end(), in));
  };
  const uint64_t alone = between(1, 1);
  Json out = Json::object({{"key_index", sharing.common_blocks}, {"sessions", sizes.size()}, {"of_1", alone}});
  out.set("of_2", between(2, 2)).set("of_3_to_5", between(3, 5)).set("of_6_to_10", between(6, 10));
  out.set("of_more", between(11, UINT64_MAX)).set("max", sizes.empty() ? uint64_t{0} : sizes.front());
  out.set("mean", share(requests, sizes.size()));
  out.set("requests_in_sessions", requests - alone);
  return std::move(out.set("requests_in_sessions_share", share(requests - alone, requests)));
}

Json parents(const std::vector<TraceRequest>& trace, const sim::Sharing& sharing) {
  std::vector<double> gaps, growth;
  uint64_t covered = 0, shorter = 0;
  for (size_t r = 0; r < trace.size(); ++r) {
    if (sharing.parents[r] == sim::kNoParent) continue;
    const TraceRequest& parent = trace[sharing.parents[r]];
    gaps.push_back((trace[r].timestamp_ms - parent.timestamp_ms) / 1000);
    growth.push_back(static_cast<double>(trace[r].input_tokens) - static_cast<double>(parent.input_tokens));
    covered += sharing.known_blocks[r] >= parent.input_tokens / kTraceBlockTokens;
    shorter += growth.back() < 0;
  }
  Json out = Json::object({{"requests", gaps.size()}, {"share", share(gaps.size(), trace.size())}});
  out.set("cover_full_blocks", share(covered, gaps.size())).set("shorter", share(shorter, gaps.size()));
  return std::move(out.set("gap_s", Spread(gaps).json()).set("input_growth", Spread(growth).json()));
}

}  // namespace

Json sharing_statistics(const std::vector<TraceRequest>& trace, const sim::TraceBlocks& blocks) {
  const sim::Sharing sharing = sim::find_sharing(trace, blocks);
  Json popular = popularity(sharing.uses);
  popular.set("hottest", hottest(trace, blocks, sharing));
  Json out = Json::object({{"popularity", std::move(popular)}});
  out.set("sessions", sessions(sharing, trace.size())).set("parents", parents(trace, sharing));
  Json reuse = Json::object({{"gap_s", Spread(sharing.reuse_gaps_s).json()}});
  reuse.set("stack_distance", Spread(sharing.stack_distances).json());
  return std::move(out.set("reuse", std::move(reuse)));
}

}  // namespace mc::bench
