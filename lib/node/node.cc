// Instantiates the special members of Event and Action once.
#include "node/node.h"

#include "base/one_of.inc"

MC_ONE_OF(mc::node::EventVariant);
MC_ONE_OF(mc::node::ActionVariant);
