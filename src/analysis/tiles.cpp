#include "analysis/tiles.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "analysis/traffic.h"
#include "dfa/error.h"

namespace dfa::analysis {
namespace {

constexpr int kGrid[] = {8, 16, 32, 64, 96, 128, 192, 256, 384, 512};

template <typename Config>
Config config_of(const Problem& p, int block_q, int block_k) {
  return {.element = p.dtype,
          .head_dim = static_cast<int>(p.d),
          .value_dim = static_cast<int>(p.dv),
          .block_q = block_q,
          .block_k = block_k};
}

double bytes_with(const Problem& p, const ForwardConfig& config) {
  return flash_forward(p, config, Reread::memory).bytes();
}

double bytes_with(const Problem& p, const BackwardConfig& config) {
  return flash_backward(p, config, Reread::memory).bytes();
}

// A block at least twice as long as the operand: half of it would do.
bool wasteful(int block, std::int64_t size) { return block > kGrid[0] && block / 2 >= size; }

// Would a tile be of several blocks in lists, which are skipped one by one?
bool straddles(const Problem& p, int block_q, int block_k) {
  return p.blocks && (p.blocks->block_q % block_q != 0 || p.blocks->block_k % block_k != 0);
}

// Smaller is better, from the first entry on.
template <typename Config>
std::array<double, 3> rank(const Problem& p, const Config& config) {
  return {-static_cast<double>(std::min(config.block_q, config.block_k)), bytes_with(p, config),
          static_cast<double>(config.tile_bytes())};
}

template <typename Config>
Config best(const Problem& p, std::int64_t sram_bytes) {
  std::optional<Config> chosen;
  std::array<double, 3> least{};
  for (const int block_q : kGrid) {
    for (const int block_k : kGrid) {
      if (wasteful(block_q, p.sq) || wasteful(block_k, p.sk)) continue;
      if (straddles(p, block_q, block_k)) continue;
      const Config config = config_of<Config>(p, block_q, block_k);
      if (config.tile_bytes() > sram_bytes) continue;
      const auto ranked = rank(p, config);
      if (chosen && ranked >= least) continue;
      chosen = config;
      least = ranked;
    }
  }
  if (chosen) return *chosen;
  throw InvalidArgument("analysis: no tile fits sram of " + std::to_string(sram_bytes) +
                        " bytes; the least tile takes " +
                        std::to_string(config_of<Config>(p, kGrid[0], kGrid[0]).tile_bytes()));
}

}  // namespace

std::vector<Tile> fitting_tiles(const Problem& p, std::int64_t sram_bytes) {
  std::vector<Tile> tiles;
  for (const int block_q : kGrid) {
    std::optional<ForwardConfig> largest;
    for (const int block_k : kGrid) {
      const auto config = config_of<ForwardConfig>(p, block_q, block_k);
      if (config.tile_bytes() <= sram_bytes && !straddles(p, block_q, block_k)) largest = config;
    }
    if (!largest) continue;
    tiles.push_back(
        {largest->block_q, largest->block_k, largest->tile_bytes(), bytes_with(p, *largest)});
  }
  return tiles;
}

ForwardConfig best_forward(const Problem& p, std::int64_t sram_bytes) {
  return best<ForwardConfig>(p, sram_bytes);
}

BackwardConfig best_backward(const Problem& p, std::int64_t sram_bytes) {
  return best<BackwardConfig>(p, sram_bytes);
}

PaperTile paper_tile(const Problem& p, std::int64_t sram_bytes) {
  const std::int64_t elements = sram_bytes / bytes_of(p.dtype);
  const std::int64_t depth = std::max(p.d, p.dv);
  const std::int64_t block_k = std::max<std::int64_t>(1, (elements + 4 * depth - 1) / (4 * depth));
  return {.block_q = std::min(block_k, depth), .block_k = block_k};
}

}  // namespace dfa::analysis
