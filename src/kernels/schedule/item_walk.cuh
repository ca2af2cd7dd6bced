#pragma once

#include "kernels/forward/sm90_args.h"
#include "kernels/schedule/key_walk.cuh"

// The query tiles that one thread block of a grid of any size works through.
namespace dfa {

// Sections of heads follow each other. Each takes whole rounds of the grid, and the direction turns
// with every round: under a causal mask, where a section's late queries come first as they see the
// most keys, whoever had the longer item of one round has the shorter one of the next.
template <int kBlockQ>
class ItemWalk {
 public:
  explicit DFA_DEVICE ItemWalk(const Sm90ForwardArgs& a)
      : a_(a), first_head_(0), round_(0), odd_(false), item_(static_cast<int>(blockIdx.x)) {
    if (item_ >= items()) next();
  }

  DFA_DEVICE bool more() const { return first_head_ < heads(); }

  DFA_DEVICE void next() {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    do {
      round_ += blocks;
      odd_ = !odd_;
      if (round_ >= items()) {
        round_ = 0;
        first_head_ += a_.section;
      }
      item_ = round_ + (odd_ ? blocks - 1 - block : block);
    } while (more() && item_ >= items());
  }

  DFA_DEVICE QueryWork work() const {
    const int within = a_.late_first ? item_ % width() : item_ / tiles();
    const int tile = a_.late_first ? tiles() - 1 - item_ / width() : item_ % tiles();
    const int head = first_head_ + within;
    return {head / a_.args.hq, head % a_.args.hq, head % a_.args.hq / (a_.args.hq / a_.args.hk),
            tile * kBlockQ};
  }

 private:
  DFA_DEVICE int heads() const { return a_.args.b * a_.args.hq; }
  DFA_DEVICE int tiles() const { return (a_.args.sq + kBlockQ - 1) / kBlockQ; }
  DFA_DEVICE int width() const {  // heads of this section
    const int rest = heads() - first_head_;
    return rest < a_.section ? rest : a_.section;
  }
  DFA_DEVICE int items() const { return tiles() * width(); }

  const Sm90ForwardArgs& a_;
  int first_head_, round_;
  bool odd_;
  int item_;
};

}  // namespace dfa
