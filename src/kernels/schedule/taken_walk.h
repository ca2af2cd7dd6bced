#pragma once

#include "kernels/schedule/item_walk.h"

// The query tiles that thread blocks take one after the other from a counter, whichever comes
// first: a block that is held up, by whatever else runs on its multiprocessor, leaves its share to
// the others.
namespace dfa {

// `Queue` tells what this block takes:
//   take()                           the next item of all (Items::nth)
//   kNotes, note(i, item), noted(i)  may items be asked for again? Of the last kAtOnce + 1
template <typename Queue>
class TakenWalk {
 public:
  static constexpr int kAtOnce = 32;  // what repair_walk.h has done again together

  explicit DFA_HOST_DEVICE TakenWalk(const Queue& queue) : queue_(queue), at_(0), taken_(0) {
    take();
  }

  DFA_HOST_DEVICE bool more() const { return item_.head >= 0; }
  DFA_HOST_DEVICE int head() const { return item_.head; }
  DFA_HOST_DEVICE int tile() const { return item_.tile; }

  DFA_HOST_DEVICE void next() {
    if constexpr (Queue::kNotes) {
      if (++at_ <= taken_) {
        item_ = queue_.noted(at_);
        return;
      }
      taken_ = at_;
    }
    take();
  }

  struct Place {
    int at, taken;
  };
  DFA_HOST_DEVICE Place place() const { return {at_, taken_}; }
  DFA_HOST_DEVICE void go(const Place& place) {
    taken_ = place.taken;
    go_back(place);
  }
  // What was taken since stays taken.
  DFA_HOST_DEVICE void go_back(const Place& place) {
    at_ = place.at;
    item_ = queue_.noted(at_);
  }

 private:
  DFA_HOST_DEVICE void take() {
    item_ = queue_.take();
    if constexpr (Queue::kNotes) queue_.note(at_, item_);
  }

  Queue queue_;
  Items::Item item_;
  int at_, taken_;
};

}  // namespace dfa
