#pragma once

#include <string>
#include <vector>

#include "dfa/problem.h"
#include "profile/row.h"

namespace dfa::profile {

// Rows that stand for a problem: of the very sizes, or of the nearest of its kind.
struct Nearest {
  std::string problem{};    // whose rows they are; empty: none is near
  bool exact = true;        // else time, joules and memory are in proportion to the work
  std::vector<Row> rows{};  // of that problem alone
};

// Of one kind are problems that are equal but for b, heads, sq, sk, scale, layout, strides and, of
// forwards, `deterministic`: a row of a softcap, a window or blocks serves no problem without. Near
// is what differs by a factor of four at most in each of sq, sk and the number of query heads in
// all; the nearest has the least sum of squared logarithms. Requires rows whose problem is a
// problem line.
Nearest nearest(const std::vector<Row>& rows, const Problem& wanted);

}  // namespace dfa::profile
