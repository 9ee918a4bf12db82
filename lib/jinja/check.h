// The checks that jinja2's compiler makes once the whole template is parsed.
#pragma once

#include "jinja/tree.h"

namespace mc::jinja {

/// invalid: an unknown filter or test, break outside a loop, an assignment to `loop`. Marks the loops and macros that
/// use the names Jinja binds for them.
Result<void> check(Tree& tree);

}  // namespace mc::jinja
