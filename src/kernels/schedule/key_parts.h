#pragma once

#include "kernels/softmax/tile_mask.h"

// Tiles of keys dealt out in parts (ForwardConfig::key_splits).
namespace dfa {

// As many for each part; the last ones may have fewer, or none.
DFA_HOST_DEVICE TileRange part_of(const TileRange& all, int part, int parts) {
  const int most = (all.end - all.begin + parts - 1) / parts;
  const int begin = all.begin + part * most, end = begin + most;
  return {begin < all.end ? begin : all.end, end < all.end ? end : all.end};
}

// What is of both; empty where nothing is.
DFA_HOST_DEVICE TileRange common(const TileRange& a, const TileRange& b) {
  const int begin = a.begin > b.begin ? a.begin : b.begin, end = a.end < b.end ? a.end : b.end;
  return {begin < end ? begin : end, end};
}

}  // namespace dfa
