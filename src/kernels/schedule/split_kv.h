#pragma once

#include "kernels/softmax/tile_mask.h"

// The last work tiles of a grid, dealt out in equal splits of their keys
// (ForwardConfig::num_splits).
//
// Whole rounds of so many blocks take work tiles as they are. Those that are left are laid end to
// end, each for as many places as there are splits, and split s is the places from s * left() on.
// That is no more than a work tile, so it lies on two at most: a piece of one, and perhaps one of
// the next.
namespace dfa {

// A part of a work tile, from one place to another; none where they are the same.
struct KeyPiece {
  int work_tile, from, to;
};

struct SplitKv {
  int work_tiles, num_splits;

  DFA_HOST_DEVICE int whole() const { return (work_tiles - 1) / num_splits * num_splits; }
  DFA_HOST_DEVICE int left() const { return work_tiles - whole(); }  // 1 to `splits`
  DFA_HOST_DEVICE int pieces() const { return 2 * num_splits; }
  // Whole work tiles, then pieces.
  DFA_HOST_DEVICE int count() const { return whole() + pieces(); }

  // First pieces of all splits come first, then their second ones the other way round, as a
  // PersistentTileScheduler turns with every round: a block of a grid of that size has both pieces
  // of a split.
  DFA_HOST_DEVICE KeyPiece piece(int n) const {
    const bool second = n >= num_splits;
    const int from = (second ? pieces() - 1 - n : n) * left();
    const int work_tile = from / num_splits, begin = from - work_tile * num_splits,
              end = begin + left();
    if (second) return {whole() + work_tile + 1, 0, end > num_splits ? end - num_splits : 0};
    return {whole() + work_tile, begin, end < num_splits ? end : num_splits};
  }

  // The nth of count().
  DFA_HOST_DEVICE KeyPiece nth(int n) const {
    return n < whole() ? KeyPiece{n, 0, num_splits} : piece(n - whole());
  }

  // Which splits have a piece of a work tile behind whole(), and which piece that is.
  DFA_HOST_DEVICE int first_split(int work_tile) const {
    return (work_tile - whole()) * num_splits / left();
  }
  DFA_HOST_DEVICE int last_split(int work_tile) const {
    return ((work_tile - whole() + 1) * num_splits - 1) / left();
  }
  DFA_HOST_DEVICE int piece_of(int split, int work_tile) const {
    return split * left() / num_splits == work_tile - whole() ? split : pieces() - 1 - split;
  }

  // Tiles of keys of a piece, where those of its work tile are `all`.
  DFA_HOST_DEVICE TileRange tiles_of(const KeyPiece& piece, const TileRange& all) const {
    const int count = all.end - all.begin;
    return {all.begin + count * piece.from / num_splits, all.begin + count * piece.to / num_splits};
  }
};

// What is of both; empty where nothing is.
DFA_HOST_DEVICE TileRange common(const TileRange& a, const TileRange& b) {
  const int begin = a.begin > b.begin ? a.begin : b.begin, end = a.end < b.end ? a.end : b.end;
  return {begin < end ? begin : end, end};
}

}  // namespace dfa
