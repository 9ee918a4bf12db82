// Posts slices on the lanes of paths that are up (internal): the number that a lane has room for, the keys, and the
// choice of path. Not thread-safe: only the thread that has the loop's turn calls this class.
#pragma once

#include <vector>

#include "xfer_rdma/paths.h"

namespace mc::xfer {

class RdmaPoster {
 public:
  RdmaPoster(RdmaParts& parts, RdmaPaths& paths) : parts_(parts), paths_(paths) {}

  /// See Transport::post(). `failed`: the path has failed, and frames may wait to be sent.
  size_t post(RdmaEndpoint& endpoint, int lane, std::span<const Slice> slices, Reports& out, bool& failed);
  bool cancel(RdmaEndpoint& endpoint, int lane, uint64_t slice);
  /// Whether the choice of a path depends on the place of the slice's memory.
  bool places(const RdmaEndpoint& endpoint) const { return placed_ && endpoint.rails.size() > 1; }
  /// Called when the ports are known. Distances count where they differ.
  void opened();

 private:
  static constexpr uint64_t kAheadBytes = uint64_t{256} << 10;

  enum class Resolved : uint8_t { yes, refused, later };  // later: the keys have not arrived yet
  Resolved resolve(const RdmaEndpoint& endpoint, const RdmaRail& rail, const Slice& slice, PlanItem& item,
                   SliceDone& refusal);
  size_t resolve_some(const RdmaEndpoint& endpoint, const RdmaRail& rail, size_t tells, std::span<const Slice> slices,
                      Reports& out);
  size_t room(const RdmaEndpoint& endpoint, RdmaRail& rail, size_t index, std::span<const Slice> slices);
  uint64_t window(const RdmaEndpoint& endpoint, const RdmaRail& rail) const;
  bool yields(const RdmaEndpoint& endpoint, const RdmaRail& rail, const Slice& slice);
  size_t paced(RdmaRail& rail, std::span<const Slice> slices);

  RdmaParts& parts_;
  RdmaPaths& paths_;
  bool placed_ = false;          // the distances of the ports differ
  std::vector<PlanItem> items_;  // scratch memory
  std::vector<PathLoad> loads_;  // scratch memory
};

}  // namespace mc::xfer
