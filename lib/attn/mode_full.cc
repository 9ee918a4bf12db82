// Full causal attention: every row is dense.
#include "attn/modes.h"

namespace mc::attn {

const ModeRow kModeFull = {
    .kind = ModeKind::full,
    .name = "full",
    .help = "every token attends to every token before it",
    .params = {},
    .dense_below = [](const Mode&) { return kDenseForEver; },
    .select = nullptr,
};

}  // namespace mc::attn
