#include "gpu/emu/shadow.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "base/assert.h"

namespace mc::gpu::emu {
namespace {

constexpr uint32_t kAll = 0xffffffffu;
constexpr uint32_t kChunkBytes = 16, kChunkWords = kChunkBytes / 4;

}  // namespace

void View::clear() {
  std::fill(seen.begin(), seen.end(), Stamp{});
  std::fill(fenced.begin(), fenced.end(), Stamp{});
}

void View::join(const View& other) {
  for (size_t i = 0; i < seen.size(); ++i) {
    seen[i].join(other.seen[i]);
    fenced[i].join(other.fenced[i]);
  }
}

Order::Order(uint32_t warps, uint32_t barriers) : agents_(2 * warps + barriers), warps_(warps) {
  MC_ASSERT_LE(warps, kWarpsMax);
  MC_ASSERT_LT(agents_, 65536u);
  for (Lanes& warp : warps_) warp.view = View(agents_);
}

/// All lanes acquire what single lanes have.
void Order::fold(Lanes& warp) {
  for (uint32_t lanes = warp.with_extra; lanes != 0; lanes &= lanes - 1) {
    View& extra = warp.extra[static_cast<size_t>(std::countr_zero(lanes))];
    warp.view.join(extra);
    extra.clear();
  }
  warp.with_extra = 0;
}

void Order::sync_warp(uint32_t number) {
  MC_ASSERT_LT(number, warps_.size());
  Lanes& warp = warps_[number];
  fold(warp);
  warp.synced = ++warp.clock;
  uint32_t fenced = warp.synced;
  for (uint32_t rest = warp.dirty; rest != 0; rest &= rest - 1)
    fenced = std::min(fenced, warp.fenced_clock[std::countr_zero(rest)]);
  warp.fenced_synced = std::max(warp.fenced_synced, fenced);
}

void Order::sync_lanes(uint32_t number, uint32_t lanes) {
  View shared(agents_);
  release(number, lanes, shared);
  acquire(number, lanes, shared);
}

void Order::release(uint32_t number, uint32_t lanes, View& out) {
  MC_ASSERT_EQ(out.seen.size(), agents_);
  Lanes& warp = warps_[number];
  out.join(warp.view);
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if ((warp.with_extra >> lane & 1) != 0) out.join(warp.extra[static_cast<size_t>(lane)]);
  }
  ++warp.clock;
  out.seen[number].join(Stamp::of(warp.synced, warp.clock, lanes));
  // A lane whose last generic access is not fenced contributes only what was fenced before the last common point.
  out.fenced[number].join(Stamp::of(warp.fenced_synced, warp.clock, lanes & ~warp.dirty));
}

void Order::acquire(uint32_t number, uint32_t lanes, const View& from) {
  MC_ASSERT_EQ(from.seen.size(), agents_);
  Lanes& warp = warps_[number];
  if (lanes == kAll) {
    warp.view.join(from);
    return;
  }
  if (warp.extra.empty()) warp.extra.assign(32, View(agents_));
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1)
    warp.extra[static_cast<size_t>(std::countr_zero(rest))].join(from);
  warp.with_extra |= lanes;
}

void Order::fence_async(uint32_t number, uint32_t lanes) {
  Lanes& warp = warps_[number];
  ++warp.clock;
  warp.dirty &= ~lanes;
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) warp.fenced_clock[std::countr_zero(rest)] = warp.clock;
  if (has_copies_) fence_copies(warp, lanes);
}

/// Tracked copies have no thread that could fence them: a lane that has waited for them fences what it sees.
void Order::fence_copies(Lanes& warp, uint32_t lanes) {
  if (warp.extra.empty()) warp.extra.assign(32, View(agents_));
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    View& own = warp.extra[static_cast<size_t>(std::countr_zero(rest))];
    for (uint32_t agent = copy_agent(0); agent < agents_; ++agent) {
      own.fenced[agent].join(warp.view.seen[agent]);
      own.fenced[agent].join(own.seen[agent]);
    }
  }
  warp.with_extra |= lanes;
}

void Order::reset(View& view) const {
  if (view.seen.size() == agents_)
    view.clear();
  else
    view = View(agents_);
}

void Order::copied(uint32_t warp, uint32_t lanes, uint32_t clock, View& out) {
  MC_ASSERT_EQ(out.seen.size(), agents_);
  has_copies_ = true;
  out.seen[copy_agent(warp)].join({0, clock + 1, lanes});
}

void Order::complete(uint32_t barrier, uint32_t phase, View& out) const {
  MC_ASSERT_LT(warps() + barrier, agents_);
  const Stamp stamp{phase + 2, 0, 0};
  out.seen[warps() + barrier].join(stamp);
  out.fenced[warps() + barrier].join(stamp);
}

bool Order::sees(const Lanes& warp, uint32_t number, uint32_t lane, const Event& event, bool fenced) const {
  if (event.agent == number) {
    if (event.clock < (fenced ? warp.fenced_synced : warp.synced)) return true;
    if (event.lanes == 1u << lane && (!fenced || event.clock < warp.fenced_clock[lane])) return true;
  }
  const View& all = warp.view;
  if ((fenced ? all.fenced : all.seen)[event.agent].covers(event.clock, event.lanes)) return true;
  if ((warp.with_extra >> lane & 1) == 0) return false;
  const View& own = warp.extra[lane];
  return (fenced ? own.fenced : own.seen)[event.agent].covers(event.clock, event.lanes);
}

bool Order::ordered(uint32_t number, uint32_t lanes, const Event& after, bool fenced) const {
  MC_ASSERT_LT(after.agent, agents_);
  const Lanes& warp = warps_[number];
  if ((fenced ? warp.view.fenced : warp.view.seen)[after.agent].covers(after.clock, after.lanes)) return true;
  if (after.agent == number && after.clock < (fenced ? warp.fenced_synced : warp.synced)) return true;
  for (; lanes != 0; lanes &= lanes - 1)
    if (!sees(warp, number, static_cast<uint32_t>(std::countr_zero(lanes)), after, fenced)) return false;
  return true;
}

void Shadow::Store::clear(size_t chunks, size_t used, size_t used_split) {
  std::fill_n(split.begin(), used_split, uint8_t{0});
  std::fill_n(words.data(), used, Word{});
  for (size_t i = 1; i < kChunkWords; ++i) std::fill_n(words.data() + i * chunks, used_split, Word{});
}

std::vector<std::unique_ptr<Shadow::Store>>& Shadow::idle_stores() {
  static thread_local std::vector<std::unique_ptr<Store>> stores;
  return stores;
}

Shadow::Shadow(Order& order, uint32_t bytes, bool strict)
    : order_(order), strict_(strict), chunks_((size_t{bytes} + kChunkBytes - 1) / kChunkBytes) {
  const size_t words = chunks_ * kChunkWords, reads = words * order.warps();
  std::vector<std::unique_ptr<Store>>& idle = idle_stores();
  const auto large = std::find_if(idle.rbegin(), idle.rend(), [&](const std::unique_ptr<Store>& store) {
    return store->words.size() >= words && store->reads.size() >= reads;
  });
  if (large != idle.rend()) {
    store_ = std::move(*large);
    idle.erase(std::next(large).base());
  } else {
    store_ = std::make_unique<Store>(std::vector<uint8_t>(chunks_), ZeroedArray<Word>(words), ZeroedArray<Read>(reads));
  }
  split_ = store_->split.data();
  words_ = store_->words.data();
  reads_ = store_->reads.data();
}

Shadow::~Shadow() {
  store_->clear(chunks_, used_, used_split_);
  std::vector<std::unique_ptr<Store>>& idle = idle_stores();
  constexpr size_t kIdleMost = 16;  // CTAs of a cluster
  if (idle.size() == kIdleMost) idle.erase(idle.begin());
  idle.push_back(std::move(store_));
}

size_t Shadow::place(size_t at) const {
  return at % kChunkWords * chunks_ + at / kChunkWords;
}

template <class F>
Conflict Shadow::each(uint32_t address, uint32_t bytes, F&& f) {
  for (size_t at = address / 4; at * 4 < address + bytes;) {
    const auto base = static_cast<uint32_t>(at * 4);
    const size_t chunk = at / kChunkWords;
    const bool is_whole = at % kChunkWords == 0 && base >= address && base + kChunkBytes <= address + bytes;
    used_ = std::max(used_, chunk + 1);
    if (!is_whole && split_[chunk] == 0) split(chunk);
    const uint32_t first = address > base ? address - base : 0, end = std::min(address + bytes - base, 4u);
    if (Conflict found = f(at, first, end)) return found;
    at += split_[chunk] != 0 ? 1 : kChunkWords;
  }
  return {};
}

void Shadow::split(size_t chunk) {
  const size_t first = chunk * kChunkWords, warps = order_.warps();
  for (size_t at = first + 1; at < first + kChunkWords; ++at) {
    word(at) = word(first);
    std::copy_n(&reads_[place(first) * warps], warps, &reads_[place(at) * warps]);
  }
  split_[chunk] = 1;
  used_split_ = std::max(used_split_, chunk + 1);
}

void Shadow::merge(uint32_t address, uint32_t bytes) {
  const size_t end = (address + bytes) / kChunkBytes;
  for (size_t chunk = (address + kChunkBytes - 1) / kChunkBytes; chunk < end; ++chunk) {
    if (split_[chunk] == 0) continue;
    // Without readers the reads of the words do not count.
    const Word& first = word(chunk * kChunkWords);
    bool is_one = first.readers == 0;
    for (size_t i = 1; i < kChunkWords; ++i) is_one = is_one && word(chunk * kChunkWords + i) == first;
    if (is_one) split_[chunk] = 0;
  }
}

Conflict Shadow::check(uint32_t warp, uint32_t lanes, size_t at, Access access, Proxy proxy) const {
  const Word& word = this->word(at);
  const auto address = static_cast<uint32_t>(at * 4);
  if (word.owner == Owner::mbarrier)
    return {.rule = Rule::barrier, .text = "touches the bytes of an mbarrier", .address = address};
  if (word.owner == Owner::copy)
    return {
        .rule = Rule::in_flight, .text = "touches bytes that an unfinished asynchronous copy owns", .address = address};
  const bool writes = access != Access::read;
  if (writes && word.reading > 0)
    return {
        .rule = Rule::reused, .text = "writes bytes that an unfinished wgmma or bulk store reads", .address = address};
  const bool both_atomic = access == Access::atomic && word.atomic;
  if (both_atomic ? word.plain_clock > 0 : word.clock > 0) {
    // Atomics need no order among themselves, but all come after the write that made the word.
    const Event write = both_atomic ? Event{word.plain_agent, word.plain_clock, word.plain_lanes}
                                    : Event{word.agent, word.clock, word.lanes};
    if (!order_.ordered(warp, lanes, write))
      return {Rule::race, writes ? "writes without order after an earlier write" : "reads without order after a write",
              write.agent, write.lanes, address};
    if (proxy == Proxy::async && !word.async && !order_.ordered(warp, lanes, write, true))
      return {Rule::proxy, "uses through the async proxy what was written without fence.proxy.async by the writer",
              word.agent, word.lanes, address};
  }
  for (uint64_t rest = writes ? word.readers : 0; rest != 0; rest &= rest - 1) {
    const auto reader = static_cast<uint32_t>(std::countr_zero(rest));
    const Read& read = reads_[place(at) * order_.warps() + reader];
    const Event event{reader, read.clock, read.lanes};
    if (!order_.ordered(warp, lanes, event))
      return {Rule::race, "writes without order after a read", reader, read.lanes, address};
    if (proxy == Proxy::async && strict_ && (word.generic_readers >> reader & 1) != 0 &&
        !order_.ordered(warp, lanes, event, true))
      return {Rule::proxy, "overwrites through the async proxy what was read without fence.proxy.async by the reader",
              reader, read.lanes, address};
  }
  return {};
}

void Shadow::note(uint32_t number, uint32_t lanes, size_t at, uint32_t first, uint32_t end, Access access,
                  Proxy proxy) {
  Word& word = this->word(at);
  const Event event = order_.now(number, lanes);
  if (access != Access::read) {
    word.clock = event.clock;
    word.lanes = lanes;
    word.agent = static_cast<uint16_t>(number);
    word.async = proxy == Proxy::async;
    word.atomic = access == Access::atomic;
    if (!word.atomic) {
      word.plain_clock = event.clock;
      word.plain_lanes = lanes;
      word.plain_agent = word.agent;
    }
    word.readers = word.generic_readers = 0;
    word.defined |= static_cast<uint8_t>(((1u << end) - 1) & ~((1u << first) - 1));
    return;
  }
  Read& read = reads_[place(at) * order_.warps() + number];
  const uint64_t bit = uint64_t{1} << number;
  const bool kept = (word.readers & bit) != 0 && read.clock >= order_.synced(number);
  read.lanes = kept ? read.lanes | lanes : lanes;
  read.clock = event.clock;
  word.readers |= bit;
  if (proxy == Proxy::generic) word.generic_readers |= bit;
}

Conflict Shadow::touch(uint32_t warp, uint32_t lanes, uint32_t address, uint32_t bytes, Access access, Proxy proxy) {
  if (proxy == Proxy::generic) order_.note_generic(warp, lanes);
  const Conflict found = each(address, bytes, [&](size_t at, uint32_t first, uint32_t end) -> Conflict {
    if (Conflict broken = check(warp, lanes, at, access, proxy)) return broken;
    const uint32_t wanted = ((1u << end) - 1) & ~((1u << first) - 1);
    if (access != Access::write && (word(at).defined & wanted) != wanted)
      return {.rule = Rule::uninitialised,
              .text = "reads shared memory that nobody wrote",
              .address = static_cast<uint32_t>(at * 4)};
    note(warp, lanes, at, first, end, access, proxy);
    return {};
  });
  if (access == Access::write) merge(address, bytes);
  return found;
}

Conflict Shadow::start_copy(uint32_t warp, uint32_t lanes, uint32_t address, uint32_t bytes, Proxy proxy) {
  return each(address, bytes, [&](size_t at, uint32_t, uint32_t) -> Conflict {
    if (Conflict found = check(warp, lanes, at, Access::write, proxy)) return found;
    word(at).owner = Owner::copy;
    return {};
  });
}

Conflict Shadow::reserve(uint32_t warp, uint32_t lanes, uint32_t address) {
  if (Conflict found = touch(warp, lanes, address, 8, Access::write, Proxy::generic)) return found;
  word(address / 4).owner = word(address / 4 + 1).owner = Owner::mbarrier;
  return {};
}

void Shadow::end_copy(uint32_t warp, uint32_t lanes, uint32_t address, uint32_t bytes) {
  order_.note_generic(warp, lanes);
  each(address, bytes, [&](size_t at, uint32_t, uint32_t) -> Conflict {
    MC_ASSERT(word(at).owner == Owner::copy);
    word(at).owner = Owner::nobody;
    note(warp, lanes, at, 0, 4, Access::write, Proxy::generic);
    return {};
  });
  merge(address, bytes);
}

void Shadow::end_tracked(const Event& event, uint32_t address, uint32_t bytes) {
  each(address, bytes, [&](size_t at, uint32_t, uint32_t) -> Conflict {
    Word& word = this->word(at);
    MC_ASSERT(word.owner == Owner::copy);
    word = {};
    word.clock = word.plain_clock = event.clock;
    word.lanes = word.plain_lanes = event.lanes;
    word.agent = word.plain_agent = static_cast<uint16_t>(event.agent);
    word.defined = 15;
    return {};
  });
  merge(address, bytes);
}

void Shadow::end_bulk(uint32_t barrier, uint32_t phase, uint32_t address, uint32_t bytes) {
  each(address, bytes, [&](size_t at, uint32_t, uint32_t) -> Conflict {
    Word& word = this->word(at);
    MC_ASSERT(word.owner == Owner::copy);
    word = {};
    word.clock = phase + 1;
    word.agent = static_cast<uint16_t>(order_.warps() + barrier);
    word.async = true;
    word.defined = 15;
    return {};
  });
  merge(address, bytes);
}

Conflict Shadow::start_read(uint32_t warp, uint32_t lanes, uint32_t address, uint32_t bytes) {
  return each(address, bytes, [&](size_t at, uint32_t, uint32_t) -> Conflict {
    if (Conflict found = check(warp, lanes, at, Access::read, Proxy::async)) return found;
    if (word(at).defined != 15)
      return {.rule = Rule::uninitialised,
              .text = "reads shared memory that nobody wrote",
              .address = static_cast<uint32_t>(at * 4)};
    ++word(at).reading;
    return {};
  });
}

void Shadow::end_read(uint32_t warp, uint32_t lanes, uint32_t address, uint32_t bytes) {
  each(address, bytes, [&](size_t at, uint32_t, uint32_t) -> Conflict {
    MC_ASSERT(word(at).reading > 0);
    --word(at).reading;
    note(warp, lanes, at, 0, 4, Access::read, Proxy::async);
    return {};
  });
}

}  // namespace mc::gpu::emu
