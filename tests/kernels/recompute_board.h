#pragma once

#include <gtest/gtest.h>

#include <set>

// What recompute_queue.h is tested with in place of a block's shared memory.
namespace dfa {

// What the notes of a block hold; tests say which work tiles want to be done again.
template <typename Walk>
struct RecomputeBoard {
  std::set<int> asked;
  typename Walk::Place begin{};
  typename Walk::Place parked{};
  unsigned parked_state = 0;
  int met = 0;
};

template <typename Walk>
struct BoardNotes {
  RecomputeBoard<Walk>* board;

  void meet(int time) const { EXPECT_EQ(time, board->met++); }
  bool asked(int work_tile) const { return board->asked.count(work_tile) != 0; }
  bool any() const { return !board->asked.empty(); }
  void start(const Walk& walk) const {
    board->asked.clear();
    board->begin = walk.place();
  }
  void go_back(Walk& walk) const { walk.go_back(board->begin); }
  void park(const Walk& walk, unsigned state) const {
    board->parked = walk.place();
    board->parked_state = state;
  }
  unsigned unpark(Walk& walk) const {
    walk.go(board->parked);
    return board->parked_state;
  }
};

}  // namespace dfa
