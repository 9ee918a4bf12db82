#include "node/arrivals.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace mc::node {

Arrivals::Arrivals(uint32_t blocks, uint32_t here, uint32_t layers)
    : blocks_(blocks),
      layers_(layers),
      missing_((blocks - here) * layers),
      crcs_(size_t{blocks} * layers),
      states_(size_t{blocks} * layers) {
  MC_ASSERT(here <= blocks && layers > 0);
  std::fill_n(states_.begin(), size_t{here} * layers, State::here);
}

bool Arrivals::names_ours(const wire::ExtentsReady& ready) const {
  return ready.layer < layers_ && ready.first_block < blocks_ && ready.extents.size() <= blocks_ - ready.first_block;
}

void Arrivals::expect(uint32_t first, uint32_t end) {
  MC_ASSERT(first < end && end <= blocks_);
  for (size_t i = at(first, 0); i < at(end, 0); ++i) {
    MC_ASSERT(states_[i] == State::absent);
    states_[i] = State::expected;
  }
}

bool Arrivals::expects(const wire::ExtentsReady& ready) const {
  MC_ASSERT(names_ours(ready));
  for (uint32_t i = 0; i < ready.extents.size(); ++i)
    if (is_expected(states_[at(ready.first_block + i, ready.layer)])) return true;
  return false;
}

void Arrivals::keep(const Reading& reading) {
  const wire::ExtentsReady& ready = reading.ready;
  MC_ASSERT(names_ours(ready));
  const auto state = [&](size_t i) -> State& { return states_[at(ready.first_block, ready.layer) + i * layers_]; };
  const size_t count = ready.extents.size();
  for (size_t first = 0; first < count; ++first) {
    size_t end = first;
    for (; end < count && state(end) == State::expected; ++end) state(end) = State::announced;
    if (end == first) continue;
    const auto extents = ready.extents.begin();
    const auto begin = static_cast<std::ptrdiff_t>(first);
    kept_.push_back({{.req = ready.req,
                      .attempt = ready.attempt,
                      .layer = ready.layer,
                      .first_block = ready.first_block + static_cast<uint32_t>(first),
                      .extents = {extents + begin, extents + static_cast<std::ptrdiff_t>(end)}},
                     reading.from,
                     reading.instance});
    first = end;
  }
}

void Arrivals::brought(uint32_t first, std::span<const wire::LeasedBlock> blocks) {
  MC_ASSERT(first <= blocks_ && blocks.size() <= blocks_ - first);
  for (const wire::LeasedBlock& block : blocks) {
    MC_ASSERT_EQ(block.layer_crcs.size(), layers_);
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      State& state = states_[at(first, layer)];
      MC_ASSERT(is_expected(state));
      state = State::here;
      crcs_[at(first, layer)] = block.layer_crcs[layer];
    }
    ++first;
  }
  missing_ -= static_cast<uint32_t>(blocks.size()) * layers_;
  std::erase_if(kept_, [this](const Reading& reading) { return !expects(reading.ready); });
}

std::vector<Arrivals::Reading> Arrivals::give_up(uint32_t first, uint32_t end) {
  MC_ASSERT(first <= end && end <= blocks_);
  for (size_t i = at(first, 0); i < at(end, 0); ++i) {
    MC_ASSERT(is_expected(states_[i]));
    states_[i] = State::absent;
  }
  // The caller keeps the announcements of blocks that are still expected again.
  for (State& state : states_)
    if (state == State::announced) state = State::expected;
  return std::exchange(kept_, {});
}

std::vector<Arrivals::Extent> Arrivals::wanted(const wire::ExtentsReady& ready) {
  MC_ASSERT(names_ours(ready));
  std::vector<Extent> out;
  for (size_t i = 0; i < ready.extents.size(); ++i) {
    const uint32_t block = ready.first_block + static_cast<uint32_t>(i);
    State& state = states_[at(block, ready.layer)];
    if (state != State::absent) continue;
    state = State::reading;
    crcs_[at(block, ready.layer)] = ready.extents[i].crc;
    out.push_back({block, ready.extents[i].segment_offset, ready.extents[i].crc});
  }
  return out;
}

void Arrivals::started(uint64_t read, Reading reading, const std::vector<Extent>& extents) {
  MC_ASSERT(names_ours(reading.ready));
  MC_ASSERT(read != 0 && !extents.empty());
  Read started{std::move(reading), {}};
  for (const Extent& extent : extents) {
    MC_ASSERT(states_[at(extent.block, started.reading.ready.layer)] == State::reading);
    started.blocks.push_back(extent.block);
  }
  const bool fresh = reads_.emplace(read, std::move(started)).second;
  MC_ASSERT(fresh);
}

Arrivals::Ended Arrivals::ended(uint64_t read, bool arrived) {
  const auto it = reads_.find(read);
  MC_ASSERT(it != reads_.end());
  Ended out{std::move(it->second.reading), static_cast<uint32_t>(it->second.blocks.size())};
  for (const uint32_t block : it->second.blocks) {
    State& state = states_[at(block, out.reading.ready.layer)];
    MC_ASSERT(state == State::reading);
    state = arrived ? State::here : State::absent;
  }
  reads_.erase(it);
  if (!arrived) return out;
  MC_ASSERT_LE(out.extents, missing_);
  missing_ -= out.extents;
  return out;
}

std::vector<uint32_t> Arrivals::crcs(uint32_t block) const {
  MC_ASSERT_LT(block, blocks_);
  const auto first = crcs_.begin() + static_cast<std::ptrdiff_t>(at(block, 0));
  return {first, first + layers_};
}

void Arrivals::check() const {
  MC_ASSERT_EQ(static_cast<size_t>(std::count(states_.begin(), states_.end(), State::here)), states_.size() - missing_);
}

}  // namespace mc::node
