#pragma once

#include "kernels/device.h"

// The query tiles that one thread block of a grid of any size works through.
namespace dfa {

struct Items {
  int heads;       // of all batches
  int tiles;       // of queries of a head
  int section;     // heads whose tiles are dealt out together: their k and v fit the L2
  int late_first;  // late queries see more keys than early ones
  int shift = 0;   // each section's rounds begin so many blocks further on: below the grid's size

  // Of the section that begins at a head: its heads, its items, where one of those is.
  DFA_HOST_DEVICE int width(int first_head) const {
    const int rest = heads - first_head;
    return rest < section ? rest : section;
  }
  DFA_HOST_DEVICE int count(int first_head) const { return tiles * width(first_head); }
  DFA_HOST_DEVICE int head(int first_head, int item) const {
    return first_head + (late_first != 0 ? item % width(first_head) : item / tiles);
  }
  DFA_HOST_DEVICE int tile(int first_head, int item) const {
    return late_first != 0 ? tiles - 1 - item / width(first_head) : item % tiles;
  }

  // The nth of all, section by section; head -1: there are not so many.
  struct Item {
    int head, tile;
  };
  DFA_HOST_DEVICE Item nth(int n) const {
    if (n >= tiles * heads) return {-1, 0};
    const int first = n / (tiles * section) * section, item = n - first * tiles;
    return {head(first, item), tile(first, item)};
  }
};

// Sections of heads follow each other. Each takes whole rounds of the grid, and the direction turns
// with every round: under a causal mask, where a section's late queries come first as they see the
// most keys, whoever had the longer item of one round has the shorter one of the next. The last
// round of a section leaves blocks without an item; with a shift those are not the same in the next
// one.
class ItemWalk {
 public:
  DFA_HOST_DEVICE ItemWalk(const Items& items, int block, int blocks)
      : items_(items), block_(block), blocks_(blocks), first_head_(0), round_(0), odd_(false) {
    item_ = block;
    if (item_ >= count()) next();
  }

  DFA_HOST_DEVICE bool more() const { return first_head_ < items_.heads; }

  DFA_HOST_DEVICE void next() {
    do {
      round_ += blocks_;
      odd_ = !odd_;
      if (round_ >= count()) {
        round_ = 0;
        first_head_ += items_.section;
        block_ += items_.shift;
        if (block_ >= blocks_) block_ -= blocks_;
      }
      item_ = round_ + (odd_ ? blocks_ - 1 - block_ : block_);
    } while (more() && item_ >= count());
  }

  static constexpr int kAtOnce = 1024;  // what recompute_queue.h has done again together

  // Where a walk of the same items and block stands.
  struct Place {
    int first_head, round, turn, item;
  };
  DFA_HOST_DEVICE Place place() const {
    return {first_head_, round_, 2 * block_ + static_cast<int>(odd_), item_};
  }
  DFA_HOST_DEVICE void go(const Place& place) {
    first_head_ = place.first_head;
    round_ = place.round;
    block_ = place.turn / 2;
    odd_ = place.turn % 2 != 0;
    item_ = place.item;
  }
  DFA_HOST_DEVICE void go_back(const Place& place) { go(place); }
  DFA_HOST_DEVICE void start() {}  // the place says it all

  DFA_HOST_DEVICE int head() const { return items_.head(first_head_, item_); }
  DFA_HOST_DEVICE int tile() const { return items_.tile(first_head_, item_); }

 private:
  DFA_HOST_DEVICE int count() const { return items_.count(first_head_); }

  const Items& items_;
  int block_, blocks_, first_head_, round_;
  bool odd_;
  int item_;
};

}  // namespace dfa
