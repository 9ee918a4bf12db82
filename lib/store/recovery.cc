#include "store/recovery.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::store {
namespace {

struct Found {
  Segment segment;
  wire::StoreGroup head;
};

/// A segment that the disk cannot read costs its blocks and not the store: its file goes, and a line says so.
Result<void> give_up(const Segment& segment, const Error& error, Segments& segments, Recovered& out) {
  out.damaged.push_back(segment.name + " is given up: " + error.what);
  return segments.erase(segment, false);
}

/// The segments that hold groups, in the order of the log. Free ones go to `segments`.
Result<std::vector<Found>> find_segments(const SegmentReader& reader, Segments& segments, Recovered& out) {
  MC_TRY(files, segments.open(out.damaged));
  std::vector<Found> found;
  for (Segment& file : files) {
    const auto head = reader.head(file);
    if (!head && head.error().code != Code::not_found) {
      MC_CHECK(give_up(file, head.error(), segments, out));
      continue;
    }
    if (!head) {
      segments.add_free(std::move(file));
      continue;
    }
    file.sequence = head->sequence;
    found.push_back({std::move(file), *head});
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.segment.sequence < b.segment.sequence; });
  // Two files of one sequence are no work of this store: one was copied. The later name is free.
  for (size_t i = 1; i < found.size();) {
    if (found[i].segment.sequence != found[i - 1].segment.sequence) {
      ++i;
      continue;
    }
    out.damaged.push_back(found[i].segment.name + ": a copy of " + found[i - 1].segment.name);
    MC_CHECK(segments.erase(found[i].segment, true));
    found.erase(found.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (size_t i = 0; i + 1 < found.size(); ++i) found[i].segment.end = found[i + 1].head.number;
  return found;
}

}  // namespace

Result<Recovered> recover(const SegmentReader& reader, Segments& segments, Index& index) {
  Recovered out;
  MC_TRY(found, find_segments(reader, segments, out));
  // The last segment is read first: its headers say up to which group values need no check.
  uint64_t durable = 0;
  for (const Found& one : found) durable = std::max(durable, one.head.durable);
  Result<SegmentContent> last = SegmentContent();
  if (!found.empty()) {
    last = reader.read(found.back().segment, UINT64_MAX, UINT64_MAX);
    durable = std::max(durable, last ? last->durable : 0);
    if (last) last = reader.read(found.back().segment, UINT64_MAX, durable);
  }
  for (size_t i = 0; i < found.size(); ++i) {
    Segment& segment = found[i].segment;
    const bool is_last = i + 1 == found.size();
    Result<SegmentContent> read = is_last ? std::move(last) : reader.read(segment, segment.end, durable);
    out.sequence = segment.sequence;
    if (!read) {
      MC_CHECK(give_up(segment, read.error(), segments, out));
      continue;
    }
    SegmentContent content = std::move(*read);
    ++(content.sealed ? out.sealed : out.walked);
    out.entries += content.entries.size();
    // Segments are much alike. A value takes a page, so no more fit, however many entries of drops the first has.
    if (i == 0) index.reserve(std::min(content.entries.size(), size_t{reader.segment_pages}) * found.size());
    for (const wire::StoreEntry& entry : content.entries) index.apply_one(entry, segment.file);
    out.number = std::max({out.number, content.last, found[i].head.number - 1});
    if (const uint64_t promised = is_last ? 0 : found[i + 1].head.durable; out.number < promised)
      out.damaged.push_back(segment.name + ": groups " + std::to_string(out.number + 1) + " to " +
                            std::to_string(promised) + " are lost");
    if (is_last && !content.sealed && content.first > 0)
      out.active.emplace(std::move(segment), std::move(content));
    else if (content.first > 0)
      segments.add_sealed(std::move(segment));
    else  // its first group is not whole: no group of it was promised
      MC_CHECK(segments.erase(segment, true));
  }
  return out;
}

}  // namespace mc::store
