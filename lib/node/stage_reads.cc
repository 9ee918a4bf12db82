#include "node/stage_reads.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {

Result<void> StageReads::may_start(const wire::StageRead& asked, uint64_t newest_run) const {
  const LayerRange held = layout_.held();
  const uint64_t end = uint64_t{asked.first_layer} + asked.crcs.size();
  if (asked.crcs.empty() || asked.first_layer < held.first || end > held.end)
    return {Code::invalid, "asked to read layers " + std::to_string(asked.first_layer) + ".." + std::to_string(end) +
                               ", it has " + std::to_string(held.first) + ".." + std::to_string(held.end) +
                               "; give all stages the same --pipeline count"};
  if (asked.pages.empty() || asked.offsets.size() != asked.pages.size())
    return {Code::invalid,
            std::to_string(asked.offsets.size()) + " addresses of " + std::to_string(asked.pages.size()) + " pages"};
  for (const auto& crcs : asked.crcs)
    if (crcs.size() != asked.pages.size())
      return {Code::invalid,
              std::to_string(crcs.size()) + " checksums of " + std::to_string(asked.pages.size()) + " pages"};
  for (const uint32_t page : asked.pages)
    if (page >= newest_.size())
      return {Code::invalid, "page " + std::to_string(page) + " of " + std::to_string(newest_.size()) +
                                 "; give the stages the same --kv-mem"};
  if (asked.read <= newest_run || is_younger(asked.read, asked.pages) ||
      writes(asked.pages, {asked.first_layer, static_cast<uint32_t>(end)}))
    return {Code::busy, "the read came after a younger chunk or read"};
  if (reads_.size() >= kMax) return {Code::busy, std::to_string(kMax) + " reads are under way, the limit"};
  return {};
}

void StageReads::refuse(const Received& event, const wire::StageRead& asked, Error why, Actions& out) {
  out.push_back(Send{event.from, event.instance, wire::StageReadDone{asked.read, why.code, std::move(why.what), true}});
}

void StageReads::cancel(const InstanceId& leader, uint64_t read, Actions& out) const {
  for (const auto& [number, asked] : reads_)
    if (asked.instance == leader && asked.read == read) out.push_back(CancelRead{number});
}

void StageReads::start(const Received& event, const wire::StageRead& asked, Actions& out) {
  Read read;
  read.read = numbers_.next();
  read.peer = asked.node, read.instance = asked.instance;
  read.budget = std::chrono::milliseconds(asked.budget_ms);
  read.urgent = asked.urgent;
  const auto bytes = static_cast<uint32_t>(layout_.layer_bytes());
  for (size_t i = 0; i < asked.pages.size(); ++i)
    for (uint32_t n = 0; n < asked.crcs.size(); ++n)
      read.slices.push_back({asked.pages[i], layout_.layer_offset(asked.first_layer + n),
                             asked.offsets[i] + uint64_t{n} * bytes, bytes, asked.crcs[n][i]});
  for (const uint32_t page : asked.pages) newest_[page] = asked.read;
  const LayerRange layers{asked.first_layer, asked.first_layer + static_cast<uint32_t>(asked.crcs.size())};
  Asked under_way{asked.read, event.from, event.instance, asked.pages, layers};
  std::sort(under_way.pages.begin(), under_way.pages.end());
  writes_.add(under_way.pages);
  const bool fresh = reads_.emplace(read.read, std::move(under_way)).second;
  MC_ASSERT(fresh && reads_.size() <= kMax);
  out.push_back(std::move(read));
}

bool StageReads::on_read(const ReadDone& done, Actions& out) {
  const auto at = reads_.find(done.read);
  if (at == reads_.end()) return false;
  const Asked& asked = at->second;
  out.push_back(Send{asked.leader, asked.instance, wire::StageReadDone{asked.read, done.code, done.what, false}});
  writes_.remove(asked.pages);
  reads_.erase(at);
  return true;
}

void StageReads::cancel_all(Actions& out) const {
  for (const auto& [number, asked] : reads_) out.push_back(CancelRead{number});
}

void StageReads::forget_leader(Actions& out) {
  cancel_all(out);
  std::fill(newest_.begin(), newest_.end(), 0);
}

bool StageReads::is_younger(uint64_t run, std::span<const uint32_t> pages) const {
  return std::any_of(pages.begin(), pages.end(), [&](uint32_t page) { return newest_[page] > run; });
}

bool StageReads::writes(std::span<const uint32_t> pages, LayerRange layers) const {
  const auto written = [&](uint32_t page) {
    return writes_.is_used(page) && std::any_of(reads_.begin(), reads_.end(), [&](const auto& entry) {
             const Asked& asked = entry.second;
             return asked.layers.first < layers.end && layers.first < asked.layers.end &&
                    std::binary_search(asked.pages.begin(), asked.pages.end(), page);
           });
  };
  return std::any_of(pages.begin(), pages.end(), written);
}

void StageReads::check() const {
  PageCounts writes(static_cast<uint32_t>(newest_.size()));
  for (const auto& [number, asked] : reads_) writes.add(asked.pages);
  MC_ASSERT(writes == writes_);
}

}  // namespace mc::node
