// The two superblocks of a store: its id, the size of its segments, and an epoch that grows with every opening. They
// are written by turns, so that one is always whole.
#pragma once

#include "store/log.h"

namespace mc::store {

/// Reads the superblocks, or makes them in a directory without segments and without a good one, with `fresh`, and
/// begins the next epoch. With read_only nothing is made, and no epoch begins.
/// unsupported (MC6008): another version of the format. corrupt (MC6009): segments are there, but no good superblock.
Result<wire::StoreSuper> open_superblocks(Disk& disk, const wire::StoreSuper& fresh, Access access);

}  // namespace mc::store
