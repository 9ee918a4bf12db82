// Deliberate errors of the kernels' logic, for the emulator's mutants.
#pragma once

#include <cstdint>

namespace mc::gpu {

/// Errors of a kernel's logic that no edit of an instruction makes. The emulator runs a kernel with one of them to see
/// that the comparison with the reference finds it; on a chip there is none.
enum class Fault : uint8_t {
  none,
  scale_forgotten,
  mask_one_short,      // a row does not see its own key
  mask_one_far,        // a row sees the key behind its own
  smallest_chosen,     // the gate prefers small scores
  lists_share_banks,   // the lists of a warp's rows lie one behind another, without a word between them
  union_misses_block,  // the last chosen block of a row is not in the union
  member_ignored,      // a row attends to blocks that other rows chose
  sums_not_rescaled,   // a new maximum leaves the old sums as they are
  splits_overlap,      // a split repeats the tile before its first
  ties_to_higher,      // of experts with equal scores the higher one is chosen
  shares_of_all,       // shares are the softmax over all scores where they are to be over the chosen ones
  neighbours_weights,  // a tile of rows has the weights of the expert before its own
  tile_loses_row,      // the last row of a tile is not stored
  gathers_own_place,   // the rows of a pass are taken from the front instead of from their places
  group_unordered,     // rows take their places in a group without regard to other warps
  tiles_share_places,  // tiles of rows begin a list at the same place
  list_descends,       // the rows of a list do not ascend
  part_lost,           // the last part of a row is not merged
  part_of_neighbour,   // the part that is merged lies one place before the row's own
  part_not_rescaled,   // parts are added without regard to their maxima
  item_loses_row,      // the last row of an item is not stored
  codes_unscaled,      // codes of E4M3 are taken for values
  codes_not_shifted,   // a row with a larger scale leaves the codes before it as they are
  state_cut,           // a cluster gives states away in bf16
};

}  // namespace mc::gpu
