// The parts of a prefix that a simulated prefill node fetches for one request (sched/fetch_plan.h). The node asks for
// them in their order, a few at a time, as a live one does (node/fetch_parts.h). A fetch is held as long as its holder
// still computes the blocks. When a holder fails, other holders of its blocks replace it as far as they can.
//
// A long part may come layer by layer. The request may begin when the first layers of all parts are here
// (sim/early_prefill.h). After that no holder is replaced, because the request computes the blocks that do not come
// (node/prefix_fetches.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "sched/sched.h"

namespace mc::sim {

/// Parts of at least `blocks_min` blocks come in so many layers. One layer = they come as a whole.
struct LayerCut {
  uint32_t layers = 1;
  uint64_t blocks_min = UINT64_MAX;
};

/// Holders are numbers of nodes.
class PrefixParts {
 public:
  /// A part to be sent, or the next layer of it.
  struct Piece {
    sched::FetchRun run;
    uint32_t of = 1;  // number of pieces of this size that make up the part
  };
  /// A prefix of which every block is here or on its way.
  struct Arriving {
    uint32_t layers = 0;  // number of leading layers that are here of all blocks; above 0
    double rest_s = 0;    // until all are here, if the rest takes as long for each layer
  };
  /// `spares` are runs of holders that may replace the holder of a part, best first.
  void fetch(const std::vector<sched::FetchRun>& parts, std::vector<sched::FetchRun> spares, bool held,
             LayerCut by_layer = {}) {
    MC_ASSERT(parts_.empty() && !held_ && by_layer.layers > 0);
    by_layer_ = by_layer;
    for (const sched::FetchRun& run : parts) add(run);
    spares_ = std::move(spares);
    held_ = held;
  }
  /// The holder has computed the blocks.
  void release() { held_ = false; }
  /// The next piece to be sent; nullopt = none is left, the fetch is held, or enough parts are on their way.
  std::optional<Piece> ask(double now_s) {
    const auto next = next_to_send();
    if (next == parts_.end()) return std::nullopt;
    if (next->state == State::waiting) next->sent_s = now_s;
    next->state = State::sent;
    ++next->asked;
    return Piece{next->run, next->pieces};
  }
  /// A piece of the part that begins with block `first` is here. A part that was given up is ignored.
  void arrive(uint32_t first, double now_s) {
    const auto part = std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.run.first == first; });
    if (part == parts_.end()) return;
    MC_ASSERT(part->state == State::sent && part->arrived < part->asked);
    if (++part->arrived < part->pieces) return;
    part->state = State::here;
    part->here_s = now_s;
  }
  /// Number of layers of a prefix that comes layer by layer.
  uint32_t layers() const { return by_layer_.layers; }
  /// Number of leading layers that are here of all parts.
  uint32_t layers_here() const {
    uint32_t here = by_layer_.layers;
    for (const Part& part : parts_)
      if (part.state != State::here) here = std::min(here, part.arrived);
    return here;
  }
  /// The rest of a fetch with which the request may begin; nullopt = a part has no layer here yet, or all are here.
  std::optional<Arriving> arriving(double now_s) const {
    if (by_layer_.layers == 1 || held_ || loading_ || count(State::sent) == 0) return std::nullopt;
    Arriving out{layers_here(), 0};
    if (out.layers == 0) return std::nullopt;
    for (const Part& part : parts_)
      if (part.state == State::sent)
        out.rest_s = std::max(out.rest_s, (now_s - part.sent_s) / part.arrived * (part.pieces - part.arrived));
    return out;
  }
  /// No holder is replaced from now on.
  void drop_spares() { spares_.clear(); }
  /// A part that is here, and the seconds from its begin, as live nodes report it (wire::EndedRead).
  struct Read {
    sched::FetchRun run;
    double seconds = 0;
  };
  std::vector<Read> reads() const {
    std::vector<Read> out;
    for (const Part& part : parts_)
      if (part.state == State::here) out.push_back({part.run, part.here_s - part.sent_s});
    return out;
  }
  /// Gives up the parts that are not on their way.
  void cut() {
    std::erase_if(parts_, [](const Part& part) { return part.state == State::waiting; });
    held_ = false;
  }
  /// The holder has failed and sends nothing more. Other holders replace it for the parts that are not here. Parts
  /// behind a block that no other holder has are given up. Returns the block at which the prefix now ends; nullopt:
  /// all parts of this holder are here.
  std::optional<uint32_t> lose(int holder) {
    std::erase_if(spares_, [&](const sched::FetchRun& spare) { return spare.holder == holder; });
    const auto is_lost = [&](const Part& part) { return part.run.holder == holder && part.state != State::here; };
    if (std::none_of(parts_.begin(), parts_.end(), is_lost)) return std::nullopt;
    const std::vector<Part> before = std::exchange(parts_, {});
    uint32_t end = before.front().run.first;
    for (const Part& part : before) {
      if (part.run.first != end) break;
      if (is_lost(part))
        replace(part.run);
      else
        parts_.push_back(part);
      if (!parts_.empty()) end = parts_.back().run.end;
    }
    return end;
  }
  /// Blocks of the prefix are read from the node's own disk.
  void begin_load() { loading_ = true; }
  void end_load() { loading_ = false; }

  bool is_here() const { return !held_ && !loading_ && count(State::here) == parts_.size(); }

 private:
  enum class State : uint8_t { waiting, sent, here };
  struct Part {
    sched::FetchRun run;
    uint32_t pieces = 1;
    State state = State::waiting;
    uint32_t asked = 0, arrived = 0;  // of the pieces
    double sent_s = 0, here_s = 0;    // when the first one was sent, and the last one was here
  };

  void add(const sched::FetchRun& run) {
    parts_.push_back({.run = run, .pieces = run.end - run.first >= by_layer_.blocks_min ? by_layer_.layers : 1});
  }
  // A part of which a layer has arrived sends the next one before another part begins.
  std::vector<Part>::iterator next_to_send() {
    const auto begun = std::find_if(parts_.begin(), parts_.end(), [](const Part& part) {
      return part.state == State::sent && part.arrived == part.asked;
    });
    if (begun != parts_.end()) return begun;
    if (held_ || count(State::sent) >= sched::kPartsAtOnce) return parts_.end();
    return std::find_if(parts_.begin(), parts_.end(), [](const Part& part) { return part.state == State::waiting; });
  }
  size_t count(State state) const {
    return static_cast<size_t>(
        std::count_if(parts_.begin(), parts_.end(), [&](const Part& part) { return part.state == state; }));
  }
  // Appends parts of other holders for the blocks of `run`, up to the first one that none of them has.
  void replace(sched::FetchRun run) {
    while (run.first < run.end) {
      const auto spare = std::find_if(spares_.begin(), spares_.end(), [&](const sched::FetchRun& other) {
        return other.first <= run.first && run.first < other.end;
      });
      if (spare == spares_.end()) return;
      const uint32_t end = std::min(spare->end, run.end);
      add({spare->holder, run.first, end});
      run.first = end;
    }
  }

  LayerCut by_layer_;
  std::vector<Part> parts_;  // in the order of their blocks
  std::vector<sched::FetchRun> spares_;
  bool held_ = false, loading_ = false;
};

}  // namespace mc::sim
