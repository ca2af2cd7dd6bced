#pragma once

#include <algorithm>
#include <cstdint>

#include "dfa/problem.h"

// What work tiles walk along the other side of the scores, in whole tiles of it.
namespace dfa {

constexpr std::int64_t tiles_of(std::int64_t rows, std::int64_t tile) {
  return (rows + tile - 1) / tile;
}

// Tiles from a begin to an end; none where that is not behind it.
constexpr std::int64_t tiles_between(std::int64_t begin, std::int64_t end, int tile) {
  return end > begin ? tiles_of(end, tile) - begin / tile : 0;
}

// Tiles of keys that some of the queries [first, first + count) see.
inline std::int64_t key_steps(const Problem& p, std::int64_t first, std::int64_t count, int tile) {
  const std::int64_t last = std::min(first + count, p.sq) - 1;
  return tiles_between(p.mask.key_begin(first, p.sq, p.sk), p.mask.key_end(last, p.sq, p.sk), tile);
}

// Tiles of queries that see one of the keys [first, first + count).
inline std::int64_t query_steps(const Problem& p, std::int64_t first, std::int64_t count,
                                int tile) {
  const std::int64_t last = std::min(first + count, p.sk) - 1;
  return tiles_between(p.mask.query_begin(first, p.sq, p.sk), p.mask.query_end(last, p.sq, p.sk),
                       tile);
}

}  // namespace dfa
