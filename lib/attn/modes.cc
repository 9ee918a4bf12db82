// The table of attention modes.
#include "attn/modes.h"

#include "base/assert.h"

namespace mc::attn {
namespace {

constexpr const ModeRow* kModes[] = {&kModeFull, &kModeMoba, &kModeWindow};

}  // namespace

std::span<const ModeRow* const> modes() {
  return kModes;
}

const ModeRow& mode_row(ModeKind kind) {
  for (const ModeRow* row : kModes)
    if (row->kind == kind) return *row;
  MC_ASSERT(!"an attention mode outside kModes");
  return *kModes[0];
}

}  // namespace mc::attn
