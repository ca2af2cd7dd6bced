#pragma once

#include "kernels/softmax/tile_mask.h"

// The last items of a grid, dealt out in equal shares of their keys (ForwardConfig::num_splits).
//
// Whole rounds of so many blocks take items as they are. Those that are left are laid end to end,
// each for as many places as there are shares, and share s is the places from s * left() on. That
// is no more than an item, so it lies on two at most: a piece of one, and perhaps one of the next.
namespace dfa {

// A part of an item, from one place to another; none where they are the same.
struct KeyPiece {
  int item, from, to;
};

struct SplitKv {
  int items, shares;

  DFA_HOST_DEVICE int whole() const { return (items - 1) / shares * shares; }
  DFA_HOST_DEVICE int left() const { return items - whole(); }  // 1 to `shares`
  DFA_HOST_DEVICE int pieces() const { return 2 * shares; }
  // Whole items, then pieces.
  DFA_HOST_DEVICE int count() const { return whole() + pieces(); }

  // First pieces of all shares come first, then their second ones the other way round, as an
  // ItemWalk turns with every round: a block of a grid of that size has both pieces of a share.
  DFA_HOST_DEVICE KeyPiece piece(int n) const {
    const bool second = n >= shares;
    const int from = (second ? pieces() - 1 - n : n) * left();
    const int item = from / shares, begin = from - item * shares, end = begin + left();
    if (second) return {whole() + item + 1, 0, end > shares ? end - shares : 0};
    return {whole() + item, begin, end < shares ? end : shares};
  }

  // The nth of count().
  DFA_HOST_DEVICE KeyPiece nth(int n) const {
    return n < whole() ? KeyPiece{n, 0, shares} : piece(n - whole());
  }

  // Which shares have a piece of an item behind whole(), and which piece that is.
  DFA_HOST_DEVICE int first_share(int item) const { return (item - whole()) * shares / left(); }
  DFA_HOST_DEVICE int last_share(int item) const {
    return ((item - whole() + 1) * shares - 1) / left();
  }
  DFA_HOST_DEVICE int piece_of(int share, int item) const {
    return share * left() / shares == item - whole() ? share : pieces() - 1 - share;
  }

  // Tiles of keys of a piece, where those of its item are `all`.
  DFA_HOST_DEVICE TileRange tiles_of(const KeyPiece& piece, const TileRange& all) const {
    const int count = all.end - all.begin;
    return {all.begin + count * piece.from / shares, all.begin + count * piece.to / shares};
  }
};

// What is of both; empty where nothing is.
DFA_HOST_DEVICE TileRange common(const TileRange& a, const TileRange& b) {
  const int begin = a.begin > b.begin ? a.begin : b.begin, end = a.end < b.end ? a.end : b.end;
  return {begin < end ? begin : end, end};
}

}  // namespace dfa
