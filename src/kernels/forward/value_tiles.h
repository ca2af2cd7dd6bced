#pragma once

#include "kernels/device.h"

namespace dfa {

// Of packed sequences pack_values leaves each in tiles of its own: the first one of a sequence
// whose first key is row `begin` of all. They have room, as a sequence ends in one tile of its own
// at most.
DFA_HOST_DEVICE int first_value_tile(int begin, int batch, int tile_keys) {
  return begin / tile_keys + batch;
}

}  // namespace dfa
