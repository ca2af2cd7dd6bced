#pragma once

#include "kernels/args.h"
#include "kernels/device.h"

// Mask of dfa/mask.h in 32-bit arithmetic: which keys a query sees and which tiles need masking.
namespace dfa {

struct TileMask {
  int left, right, sq, sk;

  static DFA_HOST_DEVICE TileMask of(const KernelArgs& a) { return {a.left, a.right, a.sq, a.sk}; }

  static DFA_HOST_DEVICE int clamp(int value, int limit) {
    return value < 0 ? 0 : (value > limit ? limit : value);
  }

  DFA_HOST_DEVICE int key_begin(int query) const {
    return left < 0 ? 0 : clamp(query + sk - sq - left, sk);
  }
  DFA_HOST_DEVICE int key_end(int query) const {
    return right < 0 ? sk : clamp(query + sk - sq + right + 1, sk);
  }
  DFA_HOST_DEVICE int query_begin(int key) const {
    return right < 0 ? 0 : clamp(key - sk + sq - right, sq);
  }
  DFA_HOST_DEVICE int query_end(int key) const {
    return left < 0 ? sq : clamp(key - sk + sq + left + 1, sq);
  }

  // Does any of the queries [query, query + queries) not see one of the keys [key, key + keys)?
  // Queries from sq on do not count, keys from sk on are never seen.
  DFA_HOST_DEVICE bool needs(int query, int queries, int key, int keys) const {
    const int last = query + queries < sq ? query + queries - 1 : sq - 1;
    return key + keys > key_end(query) || key < key_begin(last);
  }
};

// Half-open.
struct TileRange {
  int begin, end;
};

// Tiles of `tile` keys that the queries [first, first + count) see.
DFA_HOST_DEVICE TileRange key_tiles(const TileMask& mask, int first, int count, int tile) {
  const int last = first + count < mask.sq ? first + count - 1 : mask.sq - 1;
  const int begin = mask.key_begin(first), end = mask.key_end(last);
  if (end <= begin) return {0, 0};
  return {begin / tile, (end + tile - 1) / tile};
}

// Tiles of `tile` queries that see one of the keys [first, first + count).
DFA_HOST_DEVICE TileRange query_tiles(const TileMask& mask, int first, int count, int tile) {
  const int last = first + count < mask.sk ? first + count - 1 : mask.sk - 1;
  const int begin = mask.query_begin(first), end = mask.query_end(last);
  if (end <= begin) return {0, 0};
  return {begin / tile, (end + tile - 1) / tile};
}

}  // namespace dfa
