// Full causal attention: every row is dense.
#include "attn/modes.h"

namespace mc::attn {

const ModeRow kModeFull = {
    .kind = ModeKind::full,
    .name = "full",
    .help = "every token attends to every token before it",
    .params = {},
    .full_last = 0,
    .dense_below = [](const Mode&) { return kDenseForEver; },
    .first_key = [](const Mode&, int64_t) { return int64_t{0}; },
    .select = nullptr,
};

}  // namespace mc::attn
