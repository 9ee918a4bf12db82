// Windows by the engine's requests (internal): one request per transfer, over whatever transport reaches the peer.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "rfp_windows/rfp_windows.h"

namespace mc::rfp {

class EngineWindow : public Window {
 public:
  explicit EngineWindow(const WindowPlaces& places) : places_(places) {}
  ~EngineWindow() override {
    for (const auto& [batch, cookie] : started_) {
      places_.engine->cancel(batch);
      (void)places_.engine->close(batch, after(SystemClock::instance().now(), places_.timeout));
    }
  }
  EngineWindow(const EngineWindow&) = delete;
  EngineWindow& operator=(const EngineWindow&) = delete;

  void write(uint64_t offset, std::span<std::byte> local, uint64_t cookie) override {
    xfer::Request request{.op = xfer::Op::write, .local = local, .buffer = places_.written, .offset = offset};
    if (places_.wakes) request.immediate = kWakes;
    start(request, cookie);
  }
  void read(uint64_t offset, std::span<std::byte> local, uint64_t cookie) override {
    start({.op = xfer::Op::read, .local = local, .buffer = places_.read, .offset = offset}, cookie);
  }

  void on(const xfer::Event& event) override {
    const bool end = event.kind == xfer::Event::Kind::batch_done || event.kind == xfer::Event::Kind::batch_released;
    if (event.kind == xfer::Event::Kind::peer_lost && event.peer == places_.peer) {
      lost_ = true;
      return;
    }
    if (!end) return;
    const auto at = std::find_if(started_.begin(), started_.end(),
                                 [&](const auto& started) { return started.first == event.batch; });
    // Memory that a transport may still touch is not free: batch_released follows.
    if (at == started_.end() || event.quarantined) return;
    const Code code = event.kind == xfer::Event::Kind::batch_released ? Code::timeout : event.code;
    if (!places_.engine->close(event.batch)) return;
    ended_.push_back({at->second, lost_ && code == Code::ok ? Code::peer_lost : code});
    started_.erase(at);
  }

  void ended(std::vector<WindowDone>& out) override {
    out.insert(out.end(), ended_.begin(), ended_.end());
    ended_.clear();
  }

  bool idle() const override { return started_.empty(); }

 protected:
  void end_now(uint64_t cookie, Code code) { ended_.push_back({cookie, code}); }
  bool lost() const { return lost_; }

 private:
  void start(xfer::Request request, uint64_t cookie) {
    request.peer = places_.peer;
    request.transfer_class = xfer::TransferClass::urgent;
    auto batch = places_.engine->submit({&request, 1}, after(SystemClock::instance().now(), places_.timeout), cookie);
    if (!batch) return end_now(cookie, batch.error().code);
    started_.emplace_back(*batch, cookie);
  }

  WindowPlaces places_;
  std::vector<std::pair<xfer::BatchId, uint64_t>> started_;  // at most one for each slot, and the mode's
  std::vector<WindowDone> ended_;
  bool lost_ = false;
};

}  // namespace mc::rfp
