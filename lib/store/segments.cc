#include "store/segments.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/assert.h"

namespace mc::store {
namespace {

constexpr std::string_view kSegmentPrefix = "seg.";

/// The number in "seg.000012"; false for another name.
bool segment_number(std::string_view name, uint32_t& out) {
  if (!name.starts_with(kSegmentPrefix)) return false;
  name.remove_prefix(kSegmentPrefix.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), out);
  return error == std::errc() && end == name.data() + name.size() && name.size() == 6;
}

}  // namespace

Result<std::vector<Segment>> Segments::open(std::vector<std::string>& damaged) {
  MC_TRY(names, disk_.list());
  std::vector<Segment> out;
  for (const std::string& name : names) {
    uint32_t number = 0;
    if (!segment_number(name, number)) continue;
    MC_TRY(file, disk_.open(name));
    next_name_ = std::max(next_name_, number + 1);
    if (const uint64_t bytes = disk_.size(file); bytes != segment_bytes_) {
      damaged.push_back(name + ": " + std::to_string(bytes) + " bytes, not " + std::to_string(segment_bytes_));
      if (access_ == Access::read_write) MC_CHECK(disk_.remove(name, file));
      continue;
    }
    out.push_back({.name = name, .file = file});
  }
  total_ = out.size();
  return out;
}

void Segments::add_free(Segment segment) {
  segment.sequence = 0;
  segment.end = UINT64_MAX;
  free_.push_back(std::move(segment));
}

void Segments::add_sealed(Segment segment) {
  MC_ASSERT(sealed_.empty() || sealed_.back().sequence < segment.sequence);
  sealed_.push_back(std::move(segment));
}

bool Segments::take_free(Segment& out) {
  if (free_.empty()) return false;
  out = std::move(free_.front());
  free_.pop_front();
  return true;
}

std::string Segments::new_name() {
  char name[32];
  std::snprintf(name, sizeof name, "seg.%06u", next_name_++ % 1'000'000);
  ++total_;
  return name;
}

Result<Segment> Segments::create(const std::string& name) const {
  MC_TRY(file, disk_.create(name, segment_bytes_));
  return Segment{.name = name, .file = file};
}

Result<void> Segments::erase(const Segment& segment, bool keep) {
  if (access_ == Access::read_only) return {};
  Result<void> erased;
  if (keep) {
    PageBuffer zero;
    const auto page = zero.room(kPageBytes);
    std::memset(page.data(), 0, page.size());
    erased = write_pages(disk_, segment.name, segment.file, 0, page);
    if (erased) erased = flush_file(disk_, segment.name, segment.file);
  }
  if (keep && erased) {
    add_free(segment);
    return {};
  }
  // A header that cannot be erased must not come back after a restart: the file goes.
  MC_CHECK(disk_.remove(segment.name, segment.file));
  --total_;
  return {};
}

Result<void> Segments::erase_oldest(bool keep) {
  MC_ASSERT(!sealed_.empty());
  MC_CHECK(erase(sealed_.front(), keep));
  sealed_.pop_front();
  return {};
}

}  // namespace mc::store
