// A sliding window: a row attends to the last `tokens` keys, its own included (Mistral 7B v0.1, arXiv:2310.06825,
// section 2). Keys before the window stay in their pages, because a full layer, or a request with another window, may
// need them.
#include "attn/modes.h"

namespace mc::attn {
namespace {

constexpr ModeParam kWindowParams[] = {
    {"tokens", &Mode::window, 4096, 1, 1 << 24, "keys a token attends to, its own included"},
};

}  // namespace

const ModeRow kModeWindow = {
    .kind = ModeKind::window,
    .name = "window",
    .help = "every token attends to the last tokens before it",
    .params = kWindowParams,
    .full_last = 0,
    .dense_below = [](const Mode&) { return kDenseForEver; },
    .first_key = [](const Mode& mode, int64_t position) { return window_first_key(mode.window, position); },
    .select = nullptr,
};

}  // namespace mc::attn
