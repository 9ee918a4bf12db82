// Order between accesses to the shared memory of CTAs, by vector clocks (Mattern 1989; epochs after FastTrack, PLDI
// 2009).
//
// Agents are the cluster's warps and its mbarriers; a bulk copy writes in the name of the mbarrier that completes it.
// Each warp has a second agent for its copies by cp.async that an mbarrier tracks: the warp itself sees them only after
// a wait, for the mbarrier or for the group of the copies.
// An event of a warp carries the warp's clock and the lanes that did it. A Stamp names a set of events of one agent; a
// View holds one Stamp for every agent: what a warp, or a released barrier, happens after. Two events conflict when
// they touch the same 4 bytes, one writes, and neither is in the view of the other.
//
//   rule             broken when                                                          PTX ISA 9.0
//   race             a read or write is not ordered after a conflicting access            8.9, 8.10
//   in-flight        bytes of an asynchronous copy are touched before its wait            9.7.9.25
//   uninitialised    bytes are read that nobody wrote                                     -
//   proxy            the async proxy touches generic accesses that no fence.proxy.async   8.6, 9.7.13.4
//                    of the same lane covers, before its release (strict: reads too)
//   reused           bytes are written that an unfinished wgmma or bulk store reads        9.7.15.7
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "gpu/emu/rule.h"
#include "gpu/emu/zeroed.h"

namespace mc::gpu::emu {

constexpr uint32_t kWarpsMax = 64;  // of a cluster

/// Events of an agent: all before clock `all`, and those of `lanes` before clock `upto`. The join of two sets of lanes
/// takes the later clock for both: lanes of a warp that release one after another may do no more than that between.
struct Stamp {
  uint32_t all = 0, upto = 0, lanes = 0;
  /// The lanes' events before `clock`, and all before `synced`.
  static Stamp of(uint32_t synced, uint32_t clock, uint32_t lanes) {
    return lanes == 0xffffffffu ? Stamp{clock, 0, 0} : lanes == 0 ? Stamp{synced, 0, 0} : Stamp{synced, clock, lanes};
  }
  bool covers(uint32_t clock, uint32_t of) const { return clock < all || (clock < upto && (of & ~lanes) == 0); }
  void join(const Stamp& other) {
    if (other.all > all) all = other.all;
    if (other.upto > upto) upto = other.upto;
    lanes |= other.lanes;
    if (upto <= all) lanes = 0;
  }
};

/// Per agent: `seen` orders generic accesses, `fenced` also those of the async proxy.
struct View {
  explicit View(uint32_t agents = 0) : seen(agents), fenced(agents) {}
  std::vector<Stamp> seen, fenced;
  void join(const View& other);
  void clear();
};

/// Something that lanes of a warp did, or the phase of an mbarrier.
struct Event {
  uint32_t agent = 0, clock = 0, lanes = 0;
};

enum class Access : uint8_t { read, write, atomic };
enum class Proxy : uint8_t { generic, async };

/// A broken rule with a sentence about it. Without a rule the access is sound.
struct Conflict {
  static constexpr uint32_t kNobody = UINT32_MAX;
  std::optional<Rule> rule;
  std::string_view text;
  uint32_t agent = kNobody;  // that made the earlier access, if the rule is about one
  uint32_t lanes = 0, address = 0;
  explicit operator bool() const { return rule.has_value(); }
};

/// The clocks of all warps of a cluster. Warps are numbered through the cluster; behind them come its mbarriers.
class Order {
 public:
  Order(uint32_t warps, uint32_t barriers);

  /// All lanes of the warp pass a point together (bar.warp.sync with all lanes, or inside a CTA barrier).
  void sync_warp(uint32_t warp);
  /// The lanes order among themselves only.
  void sync_lanes(uint32_t warp, uint32_t lanes);
  /// The lanes' past flows into `out`; their later events do not.
  void release(uint32_t warp, uint32_t lanes, View& out);
  /// And back: the lanes happen after what was released.
  void acquire(uint32_t warp, uint32_t lanes, const View& from);
  /// fence.proxy.async: the lanes' own accesses up to now, once released, are visible to the async proxy.
  void fence_async(uint32_t warp, uint32_t lanes);
  /// The phase of a barrier: what its bulk copies wrote, for those that wait for it.
  void complete(uint32_t barrier, uint32_t phase, View& out) const;
  /// The agent in whose name the warp's tracked copies write.
  uint32_t copy_agent(uint32_t warp) const { return agents_ - this->warps() + warp; }
  /// Tracked copies of the lanes up to `clock` have ended: `out` comes after them.
  void copied(uint32_t warp, uint32_t lanes, uint32_t clock, View& out);
  /// The lanes touch memory through the generic proxy.
  void note_generic(uint32_t warp, uint32_t lanes) { warps_[warp].dirty |= lanes; }

  Event now(uint32_t warp, uint32_t lanes) const { return {warp, warps_[warp].clock, lanes}; }
  uint32_t synced(uint32_t warp) const { return warps_[warp].synced; }
  /// Whether the event happened before all of the lanes' next ones. `fenced`: for the async proxy.
  bool ordered(uint32_t warp, uint32_t lanes, const Event& after, bool fenced = false) const;
  View view() const { return View(agents_); }
  /// A view of nothing in place of what `view` has.
  void reset(View& view) const;
  uint32_t warps() const { return static_cast<uint32_t>(warps_.size()); }

 private:
  struct Lanes {                     // of a warp
    uint32_t clock = 1, synced = 0;  // all lanes see events before `synced`
    uint32_t fenced_synced = 0;      // and through the async proxy those before this
    View view;                       // of all lanes
    std::vector<View> extra;         // of single lanes, when they differ; else empty
    uint32_t with_extra = 0;
    uint32_t fenced_clock[32] = {};  // events of the lane before this clock are fenced
    uint32_t dirty = 0;              // lanes with generic accesses since their last fence
  };
  bool sees(const Lanes& warp, uint32_t number, uint32_t lane, const Event& event, bool fenced) const;
  void fold(Lanes& warp);
  void fence_copies(Lanes& warp, uint32_t lanes);

  uint32_t agents_;
  bool has_copies_ = false;  // copied() was called
  std::vector<Lanes> warps_;
};

/// The shared memory of one CTA: who wrote and read each word last, and what owns it.
class Shadow {
 public:
  Shadow(Order& order, uint32_t bytes, bool strict);
  ~Shadow();

  // ---- accesses of `bytes` bytes at `address`, by the lanes of a warp ----
  Conflict touch(uint32_t warp, uint32_t lanes, uint32_t address, uint32_t bytes, Access access, Proxy proxy);
  /// An asynchronous copy into the bytes starts in the name of `lanes`.
  Conflict start_copy(uint32_t warp, uint32_t lanes, uint32_t address, uint32_t bytes, Proxy proxy);
  /// It has ended: written by the waiting lanes of a warp (cp.async), or by a barrier's phase (bulk copies).
  void end_copy(uint32_t warp, uint32_t lanes, uint32_t address, uint32_t bytes);
  /// Or by `event` of a warp's second agent: a copy that an mbarrier tracks.
  void end_tracked(const Event& event, uint32_t address, uint32_t bytes);
  void end_bulk(uint32_t barrier, uint32_t phase, uint32_t address, uint32_t bytes);
  /// wgmma or a bulk store starts or ends to read the bytes.
  Conflict start_read(uint32_t warp, uint32_t lanes, uint32_t address, uint32_t bytes);
  void end_read(uint32_t warp, uint32_t lanes, uint32_t address, uint32_t bytes);

  /// The 8 bytes become an mbarrier, which no plain access may touch.
  Conflict reserve(uint32_t warp, uint32_t lanes, uint32_t address);

 private:
  enum class Owner : uint8_t { nobody, copy, mbarrier };
  struct Word {
    uint64_t readers = 0, generic_readers = 0;  // warps
    uint32_t clock = 0, lanes = 0;              // of the last write
    uint32_t plain_clock = 0, plain_lanes = 0;  // of the last one that was no atomic
    uint16_t agent = 0, plain_agent = 0, reading = 0;
    Owner owner = Owner::nobody;
    uint8_t defined = 0;  // bit of each byte
    bool async = false, atomic = false;

    bool operator==(const Word&) const = default;
  };
  struct Read {
    uint32_t clock = 0, lanes = 0;
  };
  /// The state of the words. The next CTA of the thread takes it over, since clearing what was used costs less than new
  /// memory.
  struct Store {
    std::vector<uint8_t> split;  // by chunk
    ZeroedArray<Word> words;     // by place(): the first words of all chunks are neighbours
    ZeroedArray<Read> reads;     // [place][warp]; those of warps that are not in Word::readers mean nothing
    void clear(size_t chunks, size_t used, size_t used_split);
  };
  static std::vector<std::unique_ptr<Store>>& idle_stores();
  /// Calls f(word, first byte, end byte) for the words that the bytes lie in until it returns a conflict: once for a
  /// chunk that is not split.
  template <class F>
  Conflict each(uint32_t address, uint32_t bytes, F&& f);
  void split(size_t chunk);
  /// Chunks that were written whole have one state for their words.
  void merge(uint32_t address, uint32_t bytes);
  Conflict check(uint32_t warp, uint32_t lanes, size_t word, Access access, Proxy proxy) const;
  size_t place(size_t at) const;
  Word& word(size_t at) { return words_[place(at)]; }
  const Word& word(size_t at) const { return words_[place(at)]; }
  void note(uint32_t warp, uint32_t lanes, size_t word, uint32_t first, uint32_t end, Access access, Proxy proxy);

  Order& order_;
  bool strict_;
  // Most accesses touch whole chunks of 16 bytes. The first word of a chunk has the state of all four until an access
  // to a part of the chunk splits it.
  size_t chunks_;
  std::unique_ptr<Store> store_;
  uint8_t* split_;
  Word* words_;
  Read* reads_;
  size_t used_ = 0, used_split_ = 0;  // chunks that were touched, or split, and those before them
};

}  // namespace mc::gpu::emu
