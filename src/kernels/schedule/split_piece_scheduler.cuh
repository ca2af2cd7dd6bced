#pragma once

#include "kernels/forward/sm90_split_args.h"

namespace dfa {

// The pieces of work tiles that split_sequence_tiles deals out, by a grid of any size: the lists of
// all blocks, each for every head. Heads that read the same keys are taken side by side.
class SplitPieceScheduler {
 public:
  DFA_DEVICE SplitPieceScheduler(const Sm90SplitForwardArgs& args, int block, int blocks)
      : args_(args), list_(block), lists_(blocks) {
    begin();
  }

  DFA_DEVICE bool more() const {
    return list_ < args_.args.packed.tile_counts[0] * args_.splits.heads;
  }
  DFA_DEVICE void next() {
    const SplitPiece& piece = here();
    if (!piece.is_last) {
      word_ = args_.word_of_next(piece.next);
      return;
    }
    list_ += lists_;
    begin();
  }

  static constexpr int kAtOnce = 1;  // none is done again

  DFA_DEVICE int head() const { return list_ % args_.splits.heads; }
  DFA_DEVICE int tile() const { return sequence_tile().tile; }
  DFA_DEVICE const SequenceTile& sequence_tile() const { return here().tile; }
  DFA_DEVICE TileRange tiles_of_piece(const TileRange& all) const {
    const int to = all.begin + here().to;
    return {all.begin + here().from, to < all.end ? to : all.end};
  }

  // Where the piece leaves its part, negative where it is all of its work tile.
  DFA_DEVICE int piece() const {
    const SplitPiece& piece = here();
    if (piece.tile.splits == 1) return -1;
    return piece.part(piece.tile.split) * args_.splits.heads + head();
  }
  // Who has a work tile's first piece of several tells those who combine them where it is.
  DFA_DEVICE void note_first() const {
    const SplitPiece& piece = here();
    if (piece.tile.splits == 1 || piece.tile.split > 0) return;
    args_.splits.ended[piece.work * args_.splits.heads + head()] = word_;
  }

 private:
  DFA_DEVICE const SplitPiece& here() const { return args_.piece_of(word_); }
  DFA_DEVICE void begin() { word_ = args_.word_of_first(list_ / args_.splits.heads); }

  const Sm90SplitForwardArgs& args_;
  int list_, lists_;  // of a head's block lists and heads; how many this grid takes at once
  unsigned word_;
};

}  // namespace dfa
