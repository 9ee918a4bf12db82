// A plane whose reads take as long as a modelled network would carry them: the bytes that really move stand for
// more bytes, and a ReadDone is held back until the modelled link into this node has carried those. All else passes
// through. For workers without a model (costed/costed.h), whose pages and activations are smaller than those they stand
// for.
#pragma once

#include <map>
#include <memory>

#include "base/fd.h"
#include "costed/modelled_link.h"
#include "node/services.h"

namespace mc::costed {

class PacedPlane final : public node::KvPlane {
 public:
  struct Pace {
    double s_per_byte = 0;             // of bytes of pages that really move
    double s_per_activation_byte = 0;  // likewise of the activations of a pipeline stage
    Duration latency{};
  };
  /// `plane` outlives it.
  static Result<std::unique_ptr<PacedPlane>> open(node::KvPlane& plane, const Pace& pace);

  void set_peers(const std::vector<wire::Peer>& peers) override { plane_.set_peers(peers); }
  void notify(const node::SendNotify& notify) override { plane_.notify(notify); }
  void read(const node::Read& read, const node::PagePlace& place) override;
  void cancel(uint64_t read) override;
  int event_fd() const override { return wait_.get(); }
  std::optional<node::Event> next() override;

 private:
  PacedPlane(node::KvPlane& plane, const Pace& pace, Fd timer, Fd wait)
      : plane_(plane), pace_(pace), timer_(std::move(timer)), wait_(std::move(wait)) {}
  /// The event, unless the link has not carried its read yet.
  std::optional<node::Event> hold(node::Event event);
  void end_read(uint64_t read);
  void arm();

  node::KvPlane& plane_;
  Pace pace_;
  Fd timer_;  // readable when a held ReadDone is due
  Fd wait_;   // epoll of the timer and the plane
  ModelledLink link_;
  std::multimap<TimePoint, node::ReadDone> held_;
};

}  // namespace mc::costed
