#pragma once

#include "kernels/args.h"
#include "kernels/device.h"
#include "kernels/either.h"
#include "kernels/schedule/seqlen_info.h"
#include "spec/target.h"

// Mask of dfa/mask.h in 32-bit arithmetic: which keys a query sees and which tiles need masking.
// Windows alone are a type of their own, as most kernels have no others.
namespace dfa {

// Half-open.
struct TileRange {
  int begin, end;
};

struct TileMask {
  int left, right, sq, sk;

  static DFA_HOST_DEVICE TileMask of(const KernelArgs& a) { return {a.left, a.right, a.sq, a.sk}; }
  template <bool kVarlen>
  static DFA_HOST_DEVICE TileMask of(const KernelArgs& a, const SeqlenInfo<kVarlen>& seq) {
    return {a.left, a.right, seq.sq(a), seq.sk(a)};
  }

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
  DFA_HOST_DEVICE bool needs(int query, int queries, int key, int keys) const;
};

// Chunks of so many positions, or below 0 a causal mask's prefix of so many keys. begin() is the
// first position of a position's chunk; those before the first key have chunks, too.
struct DividedChunks {
  int size;

  static DFA_HOST_DEVICE DividedChunks of(const KernelArgs& a) { return {a.chunk}; }
  // Division rounds to 0, and these go down.
  DFA_HOST_DEVICE int begin(int at) const {
    return (at >= 0 ? at / size : -((size - 1 - at) / size)) * size;
  }
};

// The same by a product with the inverse: a division takes registers that Hopper's backward has
// not.
struct MultipliedChunks {
  int size;
  unsigned inverse;

  // 2^32 / size, rounded down, and one less of 1, which 32 bits do not hold.
  static DFA_HOST_DEVICE unsigned inverse_of(int size) {
    return size == 1 ? 0xffffffffu
                     : static_cast<unsigned>((1ull << 32) / static_cast<unsigned>(size));
  }
  static DFA_HOST_DEVICE MultipliedChunks of(const KernelArgs& a) {
    return {a.chunk, a.chunk_inverse};
  }
  DFA_HOST_DEVICE int begin(int at) const {
    return at >= 0 ? at - remainder(at) : at + 1 - size + remainder(-1 - at);
  }

 private:
  // The quotient is right, or 1 too small.
  DFA_HOST_DEVICE int remainder(int at) const {
    const unsigned n = static_cast<unsigned>(at);
    const auto quotient = static_cast<unsigned>(static_cast<unsigned long long>(n) * inverse >> 32);
    const int rest = static_cast<int>(n - quotient * static_cast<unsigned>(size));
    return rest >= size ? rest - size : rest;
  }
};

// A window beside chunks, or a causal mask with a prefix.
template <typename Chunks>
struct RangeMaskBy : TileMask {
  Chunks chunks;

  static DFA_HOST_DEVICE RangeMaskBy of(const KernelArgs& a) {
    return {TileMask::of(a), Chunks::of(a)};
  }
  template <bool kVarlen>
  static DFA_HOST_DEVICE RangeMaskBy of(const KernelArgs& a, const SeqlenInfo<kVarlen>& seq) {
    return {TileMask::of(a, seq), Chunks::of(a)};
  }

  DFA_HOST_DEVICE int key_begin(int query) const {
    const int first = TileMask::key_begin(query);
    return chunks.size > 0 ? larger(first, clamp(chunks.begin(query + sk - sq), sk)) : first;
  }
  DFA_HOST_DEVICE int key_end(int query) const {
    const int end = TileMask::key_end(query);
    if (chunks.size <= 0) return larger(end, clamp(-chunks.size, sk));
    return smaller(end, clamp(chunks.begin(query + sk - sq) + chunks.size, sk));
  }
  DFA_HOST_DEVICE int query_begin(int key) const {
    const int first = TileMask::query_begin(key);
    if (chunks.size <= 0) return key < -chunks.size ? 0 : first;
    return larger(first, clamp(chunks.begin(key) + sq - sk, sq));
  }
  DFA_HOST_DEVICE int query_end(int key) const {
    const int end = TileMask::query_end(key);
    if (chunks.size <= 0) return end;
    return smaller(end, clamp(chunks.begin(key) + chunks.size + sq - sk, sq));
  }
  DFA_HOST_DEVICE bool needs(int query, int queries, int key, int keys) const;

 private:
  static DFA_HOST_DEVICE int larger(int a, int b) { return a > b ? a : b; }
  static DFA_HOST_DEVICE int smaller(int a, int b) { return a < b ? a : b; }
};
using RangeMask = RangeMaskBy<DividedChunks>;
using HopperRangeMask = RangeMaskBy<MultipliedChunks>;

template <auto kConfig>
using MaskOf =
    Either<kConfig.ranges, Either<kConfig.target == Target::cuda_sm90, HopperRangeMask, RangeMask>,
           TileMask>;

// Queries that see all of the keys [key, key + keys); those from sq on do not count.
template <typename AnyMask>
DFA_HOST_DEVICE TileRange seeing_all(const AnyMask& mask, int key, int keys) {
  constexpr int kNoEnd = 0x7fffffff;
  if (key + keys > mask.sk) return {kNoEnd, 0};
  const int end = mask.query_end(key);
  return {mask.query_begin(key + keys - 1), end < mask.sq ? end : kNoEnd};
}

// Keys that all of the queries [query, query + queries) see; queries from sq on do not count.
template <typename AnyMask>
DFA_HOST_DEVICE TileRange seen_by_all(const AnyMask& mask, int query, int queries) {
  const int last = query + queries < mask.sq ? query + queries - 1 : mask.sq - 1;
  return {mask.key_begin(last), mask.key_end(query)};
}

DFA_HOST_DEVICE bool TileMask::needs(int query, int queries, int key, int keys) const {
  const TileRange seen = seen_by_all(*this, query, queries);
  return key + keys > seen.end || key < seen.begin;
}
template <typename Chunks>
DFA_HOST_DEVICE bool RangeMaskBy<Chunks>::needs(int query, int queries, int key, int keys) const {
  const TileRange seen = seen_by_all(*this, query, queries);
  return key + keys > seen.end || key < seen.begin;
}

// Tiles of `tile` keys that the queries [first, first + count) see.
template <typename AnyMask>
DFA_HOST_DEVICE TileRange key_tiles(const AnyMask& mask, int first, int count, int tile) {
  const int last = first + count < mask.sq ? first + count - 1 : mask.sq - 1;
  const int begin = mask.key_begin(first), end = mask.key_end(last);
  if (end <= begin) return {0, 0};
  return {begin / tile, (end + tile - 1) / tile};
}

// Tiles of `tile` queries that see one of the keys [first, first + count).
template <typename AnyMask>
DFA_HOST_DEVICE TileRange query_tiles(const AnyMask& mask, int first, int count, int tile) {
  const int last = first + count < mask.sk ? first + count - 1 : mask.sk - 1;
  const int begin = mask.query_begin(first), end = mask.query_end(last);
  if (end <= begin) return {0, 0};
  return {begin / tile, (end + tile - 1) / tile};
}

}  // namespace dfa
