#include <algorithm>
#include <span>
#include <vector>

#include "plan/select_backward.h"
#include "plan/validate_gpu.h"
#include "plan/within_blocks.h"

namespace dfa {
namespace {

struct KeyTile {
  int block_k, block_q, warps, sharing, ctas;
};

constexpr KeyTile kKeyTiles[] = {
    {128, 32, 4, 1, 2}, {64, 64, 4, 2, 2}, {128, 64, 8, 2, 1}, {64, 64, 8, 2, 1}, {64, 32, 8, 2, 1},
    {64, 32, 4, 1, 2},  {64, 32, 4, 1, 1}, {32, 32, 4, 2, 1},  {16, 32, 2, 2, 1},
};

constexpr KeyTile kWideKeyTiles[] = {
    {64, 32, 4, 1, 2}, {64, 32, 4, 1, 1}, {64, 32, 8, 2, 1}, {32, 32, 4, 2, 1},
    {32, 16, 4, 2, 1}, {32, 16, 2, 1, 1}, {16, 16, 2, 2, 1}, {16, 16, 1, 1, 1},
};

// dq = serialized: tiles of keys, the rows of a dq semaphore, and where they were measured to be
// faster than a separate kernel (kOfPortable): the head dim, and how many thread blocks it takes
// for those of one head, which start behind one another, not to be all there is to do. 0: nowhere.
struct SerializedTile {
  KeyTile keys;
  int semaphore_rows;
  int dim;
  int blocks;
};

constexpr SerializedTile kSerializedTiles[] = {
    {{128, 64, 8, 2, 1}, 128, 128, 512},
    {{128, 32, 4, 1, 2}, 128, 64, 1024},
    {{64, 64, 8, 2, 1}, 128, 256, 1024},
    {{64, 64, 4, 2, 2}, 128, 0, 0},
};

struct QueryTile {
  int block_q, block_k, warps, ctas;
};

constexpr QueryTile kQueryTiles[] = {
    {128, 64, 4, 2}, {128, 32, 4, 2}, {64, 64, 4, 2}, {64, 32, 4, 2},
    {128, 32, 8, 1}, {64, 32, 4, 1},  {32, 32, 2, 1},
};

constexpr QueryTile kWideQueryTiles[] = {
    {64, 32, 4, 2}, {64, 32, 4, 1}, {64, 16, 4, 1}, {32, 16, 2, 1}, {16, 16, 1, 1},
};

// Heads in slices, the largest that fit; keys and queries are owned and walked alike. Not measured.
constexpr KeyTile kSlicedKeyTiles[] = {
    {64, 64, 4, 1, 1}, {64, 32, 4, 1, 1}, {32, 32, 2, 1, 1}, {32, 16, 2, 1, 1}, {16, 16, 1, 1, 1},
};
constexpr QueryTile kSlicedQueryTiles[] = {
    {64, 64, 4, 1}, {64, 32, 4, 1}, {32, 32, 2, 1}, {32, 16, 2, 1}, {16, 16, 1, 1},
};

// Of cuda_sm80, or of cuda_sm75, where without asynchronous copies a second stage would only take
// room.
BackwardConfig config_of(const Problem& p, const KeyTile& keys, const QueryTile& queries,
                         const Limits& limits) {
  const bool sm75 = limits.highest == Target::cuda_sm75;
  BackwardConfig config{.target = sm75 ? Target::cuda_sm75 : Target::cuda_sm80,
                        .element = p.dtype,
                        .head_dim = gpu_head_dim(p.d),
                        .value_dim = gpu_head_dim(p.dv),
                        .block_q = keys.block_q,
                        .block_k = keys.block_k,
                        .warps = keys.warps,
                        .sharing = keys.sharing,
                        .stages = sm75 ? 1 : 2,
                        .ctas = keys.ctas,
                        .dq_block_q = queries.block_q,
                        .dq_block_k = queries.block_k,
                        .dq_warps = queries.warps,
                        .dq_ctas = queries.ctas,
                        .varlen = p.packed()};
  set_logits(config, p);
  config.ranges = !p.mask.is_window();
  config.dropout = p.dropout > 0;
  config.blocks = p.blocks.has_value();
  return config;
}

BackwardConfig config_of(const Problem& p, const SerializedTile& tile, const Limits& limits) {
  constexpr BackwardConfig kNone;  // there is no kernel of dq with tiles of its own
  BackwardConfig c = config_of(
      p, tile.keys, {tile.semaphore_rows, kNone.dq_block_k, kNone.dq_warps, kNone.dq_ctas}, limits);
  c.dq = DqAccumulation::serialized;
  return c;
}

bool serialized_pays(const SerializedTile& tile, const BackwardConfig& c, const Problem& p) {
  const std::int64_t blocks = p.b * p.hk * ((p.sk + c.block_k - 1) / c.block_k);
  return c.head_dim == tile.dim && c.value_dim == tile.dim && blocks >= tile.blocks;
}

// Warps that share keys stop sharing where a tile has too few queries; else as within_blocks.h.
KeyTile within_blocks(const Problem& p, KeyTile tile) {
  if (!p.blocks) return tile;
  const int least_shared = bytes_of(p.dtype) == 4 ? 16 : 32;  // queries of a tile
  while (p.blocks->block_q % tile.block_q != 0) tile.block_q /= 2;
  if (tile.sharing > 1 && tile.block_q < least_shared) {
    tile.warps /= tile.sharing;
    tile.sharing = 1;
  }
  while (p.blocks->block_k % tile.block_k != 0) {
    if (tile.warps > tile.sharing) tile.warps /= 2;
    tile.block_k /= 2;
  }
  return tile;
}

std::span<const QueryTile> query_tiles_of(const Problem& p) {
  if (std::max(p.d, p.dv) > kMostColumns) return kSlicedQueryTiles;
  return bytes_of(p.dtype) == 4 ? std::span<const QueryTile>(kWideQueryTiles) : kQueryTiles;
}

std::span<const KeyTile> key_tiles_of(const Problem& p) {
  if (std::max(p.d, p.dv) > kMostColumns) return kSlicedKeyTiles;
  return bytes_of(p.dtype) == 4 ? std::span<const KeyTile>(kWideKeyTiles) : kKeyTiles;
}

}  // namespace

std::vector<BackwardConfig> portable_backward_candidates(const Problem& p, const Limits& limits) {
  std::vector<BackwardConfig> legal, later;
  for (const SerializedTile& tile : kSerializedTiles) {
    const BackwardConfig config = config_of(p, tile, limits);
    if (!validate_portable(config, p, limits)) continue;
    (serialized_pays(tile, config, p) ? legal : later).push_back(config);
  }
  for (const QueryTile& queries : query_tiles_of(p)) {
    for (const KeyTile& keys : key_tiles_of(p)) {
      const BackwardConfig config =
          config_of(p, within_blocks(p, keys), within_blocks(p, queries), limits);
      const bool is_new = std::ranges::find(legal, config) == legal.end();
      if (is_new && validate_portable(config, p, limits)) legal.push_back(config);
    }
  }
  legal.insert(legal.end(), later.begin(), later.end());
  return legal;
}

BackwardConfig bias_gradient_config(const Problem& p) {
  constexpr Limits kHopper = gpu_limits(90);
  for (const BackwardConfig& config : portable_backward_candidates(p, kHopper)) {
    if (config.dq == DqAccumulation::separate) return config;
  }
  return first_portable_backward(p, kHopper);
}

BackwardConfig first_portable_backward(const Problem& p, const Limits& limits) {
  return config_of(p, within_blocks(p, kKeyTiles[0]), within_blocks(p, kQueryTiles[0]), limits);
}

}  // namespace dfa
