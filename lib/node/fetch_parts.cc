#include "node/fetch_parts.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::node {
namespace {

// The sum may exceed 32 bits, because a message may carry any numbers.
uint64_t end_of(const wire::Source& source) {
  return uint64_t{source.first_block} + source.block_count;
}

bool is_active(const FetchPart& part) {
  switch (part.state) {
    case FetchPart::State::leasing:
    case FetchPart::State::granted:
    case FetchPart::State::reading: return true;
    case FetchPart::State::waiting:
    case FetchPart::State::here: return false;
  }
  return false;
}

bool has_pages(const FetchPart& part) {
  return part.state == FetchPart::State::reading || part.state == FetchPart::State::here;
}

}  // namespace

FetchParts::FetchParts(std::vector<wire::Source> sources, uint32_t have, uint32_t end) : sources_(std::move(sources)) {
  uint32_t next = have;
  for (const wire::Source& source : sources_) {
    const auto source_end = static_cast<uint32_t>(std::min<uint64_t>(end_of(source), end));
    if (source_end <= next || source.first_block >= source_end) continue;
    if (source.first_block > next) fill(next, source.first_block);  // blocks that were here have been evicted
    add(source, std::max(next, source.first_block), source_end);
    next = source_end;
  }
}

void FetchParts::add(const wire::Source& source, uint32_t first, uint32_t end) {
  MC_ASSERT_LT(first, end);
  FetchPart part;
  part.source = source;
  part.source.first_block = first, part.source.block_count = end - first;
  const bool fresh = parts_.emplace(first, std::move(part)).second;
  MC_ASSERT(fresh);
}

void FetchParts::fill(uint32_t block, uint32_t end) {
  while (block < end) {
    const auto other = std::find_if(sources_.begin(), sources_.end(), [&](const wire::Source& s) {
      return s.first_block <= block && block < end_of(s) &&
             std::find(refused_.begin(), refused_.end(), s.instance) == refused_.end();
    });
    if (other == sources_.end()) return;
    const auto other_end = static_cast<uint32_t>(std::min<uint64_t>(end_of(*other), end));
    add(*other, block, other_end);
    block = other_end;
  }
}

bool FetchParts::covers(uint32_t block) const {
  const auto next = parts_.upper_bound(block);
  return next != parts_.begin() && block < std::prev(next)->second.end();
}

FetchPart* FetchParts::find(uint64_t operation) {
  MC_ASSERT(operation != 0);
  for (auto& [first, part] : parts_)
    if (part.lease == operation || part.read == operation) return &part;
  return nullptr;
}

FetchPart* FetchParts::next_waiting(uint32_t active_max) {
  uint32_t active = 0;
  FetchPart* waiting = nullptr;
  for (auto& [first, part] : parts_) {
    active += is_active(part);
    if (!waiting && part.state == FetchPart::State::waiting) waiting = &part;
  }
  return active < active_max ? waiting : nullptr;
}

std::optional<FetchPart> FetchParts::take(uint32_t have) {
  const auto it = parts_.find(have);
  if (it == parts_.end() || it->second.state != FetchPart::State::here) return std::nullopt;
  std::optional<FetchPart> out = std::move(it->second);
  parts_.erase(it);
  return out;
}

void FetchParts::ask_again(FetchPart& part, uint32_t end) {
  MC_ASSERT(part.first() < end && end < part.end());
  const uint32_t part_end = part.end();
  part.source.block_count = end - part.first();
  add(part.source, end, part_end);
}

void FetchParts::replace(FetchPart& part, uint32_t block) {
  MC_ASSERT(block >= part.first() && block < part.end());
  const uint32_t end = part.end();
  refused_.push_back(part.source.instance);
  if (block > part.first())
    part.source.block_count = block - part.first();
  else
    remove(part);
  fill(block, end);
}

uint32_t FetchParts::end_of_prefix(uint32_t have) const {
  for (const auto& [first, part] : parts_) {
    if (first != have) break;
    have = part.end();
  }
  return have;
}

void FetchParts::check(uint32_t have) const {
  if (!parts_.empty()) MC_ASSERT_EQ(end_of_prefix(have), parts_.rbegin()->second.end());
  for (const auto& [first, part] : parts_) {
    MC_ASSERT(first == part.first() && first < part.end());
    MC_ASSERT_EQ(part.lease != 0, is_active(part));
    MC_ASSERT_EQ(part.read != 0, part.state == FetchPart::State::reading);
    MC_ASSERT_EQ(part.pages.empty(), !has_pages(part));
    if (!part.pages.empty()) MC_ASSERT_EQ(part.pages.size(), part.source.block_count);
  }
}

}  // namespace mc::node
