// Injected faults: a transport that wraps another one and damages what passes through it, by seeded random numbers. It
// is part of the product, because the operator of a cluster tests with it too. It tests the engine (every batch ends,
// nothing leaks, wrong bytes are noticed), not the inner transport.
//
//   fail_submit       the slice never reaches the transport and comes back as io
//   fail_completion   the bytes move, but the completion says io
//   drop_completion   the bytes move, but the completion never comes (the deadline must end the slice)
//   duplicate         the completion comes twice
//   delay             the completion comes later
//   corrupt           one byte of a finished read is flipped
//   lose_peer         the connection is closed instead of posting
//   slices_max        limit of slices that a lane takes at a time
//   immediates_max    limit of those with an immediate
#include <algorithm>
#include <map>

#include "base/rng.h"
#include "xfer/transport.h"

namespace mc::xfer {
namespace {

class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> inner, const FaultPlan& plan)
      : inner_(std::move(inner)), plan_(plan), rng_(plan.seed) {}

  Result<std::string> listen() override { return inner_->listen(); }
  std::string remark() const override { return inner_->remark(); }
  EndpointId connect(const Dial& dial, Reports& out) override { return inner_->connect(dial, out); }
  int lanes(EndpointId endpoint) const override { return inner_->lanes(endpoint); }

  size_t post(EndpointId endpoint, int lane, std::span<const Slice> slices, Reports& out) override {
    if (rng_.chance(plan_.lose_peer)) {
      close(endpoint, Code::io, "injected: connection lost", out);
      return 0;
    }
    size_t taken = 0;
    Reports from;
    for (const Slice& slice : slices) {
      if (plan_.slices_max > 0 && in_flight(endpoint, lane, false) >= plan_.slices_max) break;
      if (rng_.chance(plan_.fail_submit)) {
        out.done.push_back({slice.id, Code::io, 0, "injected: submit failed", true});
        ++taken;
        continue;
      }
      if (inner_->post(endpoint, lane, {&slice, 1}, from) == 0) break;
      flying_[slice.id] = {slice, endpoint, lane};
      ++taken;
    }
    spoil(from, out);
    return taken;
  }

  uint64_t slice_bytes(EndpointId endpoint, int lane) const override { return inner_->slice_bytes(endpoint, lane); }

  size_t immediates_ahead(EndpointId endpoint, int lane) const override {
    const size_t ahead = inner_->immediates_ahead(endpoint, lane);
    if (!plan_.immediates_max) return ahead;
    const size_t most = *plan_.immediates_max;
    return std::min(ahead, most - std::min(most, in_flight(endpoint, lane, true)));
  }

  bool cancel(EndpointId endpoint, int lane, uint64_t slice) override {
    held_.erase(std::remove_if(held_.begin(), held_.end(), [&](const Held& held) { return held.done.slice == slice; }),
                held_.end());
    const bool free_now = inner_->cancel(endpoint, lane, slice);
    if (free_now) flying_.erase(slice);
    return free_now;
  }
  Code notify(EndpointId endpoint, std::span<const std::byte> bytes, Reports& out) override {
    return inner_->notify(endpoint, bytes, out);
  }
  void publish(Reports& out) override {
    Reports from;
    inner_->publish(from);
    spoil(from, out);
  }
  void close(EndpointId endpoint, Code code, std::string_view why, Reports& out) override {
    Reports from;
    inner_->close(endpoint, code, why, from);
    spoil(from, out);
  }
  void shutdown() override { inner_->shutdown(); }
  void ready(uint64_t token, uint32_t events, Reports& out) override {
    Reports from;
    inner_->ready(token, events, from);
    spoil(from, out);
  }
  TimePoint tick(TimePoint now, Reports& out) override {
    Reports from;
    TimePoint next = inner_->tick(now, from);
    spoil(from, out);
    std::erase_if(held_, [&](Held& held) {
      if (held.due > now) {
        next = std::min(next, held.due);
        return false;
      }
      out.done.push_back(std::move(held.done));
      return true;
    });
    return next;
  }
  TimePoint look(Reports& out) override {
    Reports from;
    TimePoint next = inner_->look(from);
    spoil(from, out);
    for (const Held& held : held_) next = std::min(next, held.due);
    return next;
  }
  void doze(Reports& out) override {
    Reports from;
    inner_->doze(from);
    spoil(from, out);
  }
  void pause_notifies(bool pause) override { inner_->pause_notifies(pause); }
  Result<void> attach(BufferId buffer, std::span<std::byte> memory, AccessClass access) override {
    return inner_->attach(buffer, memory, access);
  }
  void detach(BufferId buffer) override { inner_->detach(buffer); }

 private:
  struct Flying {
    Slice slice;
    EndpointId endpoint;
    int lane;
  };
  struct Held {
    TimePoint due;
    SliceDone done;
  };

  /// Number of slices in flight on that lane, or of those with an immediate.
  size_t in_flight(EndpointId endpoint, int lane, bool telling) const {
    return static_cast<size_t>(std::count_if(flying_.begin(), flying_.end(), [&](const auto& entry) {
      const Flying& flying = entry.second;
      return flying.endpoint == endpoint && flying.lane == lane && (!telling || flying.slice.immediate);
    }));
  }

  void spoil(Reports& from, Reports& out) {
    for (SliceDone& done : from.done) spoil(std::move(done), out);
    for (EndpointEvent& event : from.events) {
      if (event.kind == EndpointEvent::Kind::lost)
        std::erase_if(flying_, [&](const auto& entry) { return entry.second.endpoint == event.endpoint; });
      out.events.push_back(std::move(event));
    }
  }

  void spoil(SliceDone done, Reports& out) {
    const auto at = flying_.find(done.slice);
    if (at == flying_.end()) {
      out.done.push_back(std::move(done));
      return;
    }
    const Slice slice = at->second.slice;
    flying_.erase(at);
    if (rng_.chance(plan_.drop_completion)) return;
    if (done.code == Code::ok && rng_.chance(plan_.fail_completion)) {
      done.code = Code::io;
      done.text = "injected: completion failed";
    }
    if (done.code == Code::ok && slice.op == Op::read && rng_.chance(plan_.corrupt)) {
      const size_t at_byte = rng_.below(slice.local.size());
      slice.local[at_byte] ^= std::byte{0x10};
      done.crc32c ^= 0x5a5a5a5a;  // the transport would have reported another checksum for other bytes
    }
    const bool twice = rng_.chance(plan_.duplicate_completion);
    if (rng_.chance(plan_.delay)) {
      held_.push_back({SystemClock::instance().now() + plan_.delay_for, done});
    } else {
      out.done.push_back(done);
    }
    if (twice) out.done.push_back(std::move(done));
  }

  std::unique_ptr<Transport> inner_;
  FaultPlan plan_;
  Rng rng_;
  std::map<uint64_t, Flying> flying_;
  std::vector<Held> held_;
};

}  // namespace

std::unique_ptr<Transport> inject_faults(std::unique_ptr<Transport> inner, const FaultPlan& plan) {
  return std::make_unique<FaultTransport>(std::move(inner), plan);
}

}  // namespace mc::xfer
