#pragma once

#include "kernels/device.h"

// The query tiles that one thread block of a grid of any size works through.
namespace dfa {

struct TileGrid {
  int heads;       // of all batches
  int tiles;       // of queries of a head
  int section;     // heads whose tiles are dealt out together: their k and v fit the L2
  int late_first;  // late queries see more keys than early ones
  int shift = 0;   // each section's rounds begin so many blocks further on: below the grid's size

  // Of the section that begins at a head: its heads, its work tiles, where one of those is.
  DFA_HOST_DEVICE int width(int first_head) const {
    const int rest = heads - first_head;
    return rest < section ? rest : section;
  }
  DFA_HOST_DEVICE int count(int first_head) const { return tiles * width(first_head); }
  DFA_HOST_DEVICE int head(int first_head, int work_tile) const {
    return first_head + (late_first != 0 ? work_tile % width(first_head) : work_tile / tiles);
  }
  DFA_HOST_DEVICE int tile(int first_head, int work_tile) const {
    return late_first != 0 ? tiles - 1 - work_tile / width(first_head) : work_tile % tiles;
  }

  // The nth of all, section by section; head -1: there are not so many.
  struct WorkTile {
    int head, tile;
  };
  DFA_HOST_DEVICE WorkTile nth(int n) const {
    if (n >= tiles * heads) return {-1, 0};
    const int first = n / (tiles * section) * section, work_tile = n - first * tiles;
    return {head(first, work_tile), tile(first, work_tile)};
  }
};

// Sections of heads follow each other. Each takes whole rounds of the grid, and the direction turns
// with every round: under a causal mask, where a section's late queries come first as they see the
// most keys, whoever had the longer work tile of one round has the shorter one of the next. The
// last round of a section leaves blocks without a work tile; with a shift those are not the same in
// the next one.
class PersistentTileScheduler {
 public:
  DFA_HOST_DEVICE PersistentTileScheduler(const TileGrid& tile_grid, int block, int blocks)
      : tile_grid_(tile_grid),
        block_(block),
        blocks_(blocks),
        first_head_(0),
        round_(0),
        odd_(false) {
    work_tile_ = block;
    if (work_tile_ >= count()) next();
  }

  DFA_HOST_DEVICE bool more() const { return first_head_ < tile_grid_.heads; }

  DFA_HOST_DEVICE void next() {
    do {
      round_ += blocks_;
      odd_ = !odd_;
      if (round_ >= count()) {
        round_ = 0;
        first_head_ += tile_grid_.section;
        block_ += tile_grid_.shift;
        if (block_ >= blocks_) block_ -= blocks_;
      }
      work_tile_ = round_ + (odd_ ? blocks_ - 1 - block_ : block_);
    } while (more() && work_tile_ >= count());
  }

  static constexpr int kAtOnce = 1024;  // what recompute_queue.h has done again together

  // Where a walk of the same work tiles and block stands.
  struct Place {
    int first_head, round, turn, work_tile;
  };
  DFA_HOST_DEVICE Place place() const {
    return {first_head_, round_, 2 * block_ + static_cast<int>(odd_), work_tile_};
  }
  DFA_HOST_DEVICE void go(const Place& place) {
    first_head_ = place.first_head;
    round_ = place.round;
    block_ = place.turn / 2;
    odd_ = place.turn % 2 != 0;
    work_tile_ = place.work_tile;
  }
  DFA_HOST_DEVICE void go_back(const Place& place) { go(place); }
  DFA_HOST_DEVICE void start() {}  // the place says it all

  DFA_HOST_DEVICE int head() const { return tile_grid_.head(first_head_, work_tile_); }
  DFA_HOST_DEVICE int tile() const { return tile_grid_.tile(first_head_, work_tile_); }

 private:
  DFA_HOST_DEVICE int count() const { return tile_grid_.count(first_head_); }

  const TileGrid& tile_grid_;
  int block_, blocks_, first_head_, round_;
  bool odd_;
  int work_tile_;
};

}  // namespace dfa
