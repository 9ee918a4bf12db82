#include "xfer/slice_table.h"

#include <utility>

#include "base/assert.h"

namespace mc::xfer {

using State = SliceRecord::State;

uint32_t SliceTable::take_index() {
  if (free_.empty()) {
    slices_.emplace_back();
    free_.push_back(static_cast<uint32_t>(slices_.size() - 1));
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  MC_ASSERT(slices_[index].state == State::free);
  return index;
}

void SliceTable::adopt(OpenBatch& batch, uint64_t number, EndpointId endpoint, int lane) {
  MC_ASSERT(lent_ != kNoIndex && id(lent_) == number);
  MC_ASSERT_EQ(batch.requests.size(), size_t{1});
  const uint32_t index = std::exchange(lent_, kNoIndex);
  slices_[index] = {.state = State::waiting,
                    .generation = slices_[index].generation,
                    .batch = &batch,
                    .bytes = static_cast<uint32_t>(batch.requests[0].local.size())};
  ++batch.slices;
  ++batch.states[0].slices;
  posted(index, endpoint, lane);
}

uint32_t SliceTable::make(OpenBatch& batch, uint32_t request, uint64_t at, uint32_t bytes) {
  MC_ASSERT_LT(request, batch.requests.size());
  MC_ASSERT_LE(at + bytes, batch.requests[request].local.size());
  const uint32_t index = take_index();
  const uint32_t generation = slices_[index].generation + 1;
  slices_[index] = {
      .state = State::waiting, .generation = generation, .batch = &batch, .request = request, .at = at, .bytes = bytes};
  ++batch.slices;
  ++batch.states[request].slices;
  MC_ASSERT_LE(batch.states[request].slices, batch.slices);
  tally_.add(Count::slices_in_flight);
  return index;
}

uint32_t SliceTable::split(uint32_t index, uint64_t most) {
  const SliceRecord whole = slices_[index];
  MC_ASSERT(whole.state == State::waiting);
  MC_ASSERT(most > 0 && most < whole.bytes);
  const auto rest = static_cast<uint32_t>(whole.bytes - most);
  const uint32_t other = make(*whole.batch, whole.request, whole.at + most, rest);
  slices_[other].attempts = whole.attempts;
  slices_[index].bytes = static_cast<uint32_t>(most);
  return other;
}

void SliceTable::posted(uint32_t index, EndpointId endpoint, int lane) {
  SliceRecord& slice = slices_[index];
  MC_ASSERT(slice.state == State::waiting);
  MC_ASSERT(endpoint != EndpointId::none && lane >= 0);
  slice.state = State::posted;
  slice.endpoint = endpoint;
  slice.lane = lane;
  ++slice.attempts;
}

void SliceTable::retry(uint32_t index) {
  SliceRecord& slice = slices_[index];
  MC_ASSERT(slice.state == State::posted);
  slice.state = State::waiting;
  ++slice.generation;
  slice.endpoint = EndpointId::none;
}

void SliceTable::quarantine(uint32_t index) {
  SliceRecord& slice = slices_[index];
  MC_ASSERT(slice.state == State::posted);
  slice.state = State::quarantined;
  slice.batch->quarantined += slice.bytes;
  tally_.add(Count::quarantined_bytes, slice.bytes);
}

void SliceTable::release(uint32_t index) {
  SliceRecord& slice = slices_[index];
  MC_ASSERT(slice.state != State::free);
  OpenBatch& batch = *slice.batch;
  if (slice.state == State::quarantined) {
    MC_ASSERT_LE(slice.bytes, batch.quarantined);
    batch.quarantined -= slice.bytes;
    tally_.sub(Count::quarantined_bytes, slice.bytes);
  }
  MC_ASSERT_LT(0u, batch.states[slice.request].slices);
  MC_ASSERT_LE(batch.states[slice.request].slices, batch.slices);
  --batch.slices;
  --batch.states[slice.request].slices;
  tally_.sub(Count::slices_in_flight);
  slice.state = State::free;
  slice.batch = nullptr;
  free_.push_back(index);
  MC_ASSERT_LE(free_.size(), slices_.size());
}

SliceRecord* SliceTable::find(uint64_t id, uint32_t& index) {
  index = static_cast<uint32_t>(id);
  if (index >= slices_.size() || slices_[index].generation != id >> 32) return nullptr;
  const State state = slices_[index].state;
  return state == State::posted || state == State::quarantined ? &slices_[index] : nullptr;
}

}  // namespace mc::xfer
