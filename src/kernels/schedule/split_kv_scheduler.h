#pragma once

#include "kernels/schedule/split_kv.h"
#include "kernels/schedule/tile_scheduler.h"

namespace dfa {

// A PersistentTileScheduler along one row of whole work tiles and pieces of work tiles (SplitKv),
// past pieces that have nothing.
class SplitKvTileScheduler : public PersistentTileScheduler {
 public:
  // `row`: one head, of splits.count() tiles.
  DFA_HOST_DEVICE SplitKvTileScheduler(const SplitKv& splits, int of_head, const TileGrid& row,
                                       int block, int blocks)
      : PersistentTileScheduler(row, block, blocks), splits_(splits), of_head_(of_head) {
    pass_empty();
  }

  DFA_HOST_DEVICE void next() {
    PersistentTileScheduler::next();
    pass_empty();
  }

  DFA_HOST_DEVICE int head() const { return here().work_tile / of_head_; }
  DFA_HOST_DEVICE int tile() const { return here().work_tile % of_head_; }

  // Which piece this is; negative where it is a whole work tile.
  DFA_HOST_DEVICE int piece() const { return PersistentTileScheduler::tile() - splits_.whole(); }
  // Its tiles of keys, where those of its work tile are `all`.
  DFA_HOST_DEVICE TileRange tiles_of_piece(const TileRange& all) const {
    return splits_.tiles_of(here(), all);
  }

 private:
  DFA_HOST_DEVICE KeyPiece here() const { return splits_.nth(PersistentTileScheduler::tile()); }
  DFA_HOST_DEVICE void pass_empty() {
    while (more() && here().from == here().to) PersistentTileScheduler::next();
  }

  SplitKv splits_;
  int of_head_;
};

}  // namespace dfa
