#pragma once

#include "kernels/schedule/item_walk.h"
#include "kernels/schedule/split_kv.h"

namespace dfa {

// An ItemWalk along one row of whole items and pieces of items (SplitKv), past pieces that have
// nothing.
class ShareWalk : public ItemWalk {
 public:
  // `row`: one head, of shares.count() tiles.
  DFA_HOST_DEVICE ShareWalk(const SplitKv& shares, int of_head, const Items& row, int block,
                            int blocks)
      : ItemWalk(row, block, blocks), shares_(shares), of_head_(of_head) {
    pass_empty();
  }

  DFA_HOST_DEVICE void next() {
    ItemWalk::next();
    pass_empty();
  }

  DFA_HOST_DEVICE int head() const { return here().item / of_head_; }
  DFA_HOST_DEVICE int tile() const { return here().item % of_head_; }

  // Which piece this is; negative where it is a whole item.
  DFA_HOST_DEVICE int piece() const { return ItemWalk::tile() - shares_.whole(); }
  // Its tiles of keys, where those of its item are `all`.
  DFA_HOST_DEVICE TileRange tiles_of_piece(const TileRange& all) const {
    return shares_.tiles_of(here(), all);
  }

 private:
  DFA_HOST_DEVICE KeyPiece here() const { return shares_.nth(ItemWalk::tile()); }
  DFA_HOST_DEVICE void pass_empty() {
    while (more() && here().from == here().to) ItemWalk::next();
  }

  SplitKv shares_;
  int of_head_;
};

}  // namespace dfa
