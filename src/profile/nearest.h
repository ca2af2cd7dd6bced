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

// Of one kind are problems of the same pass, element type, head dims and mask (windows of the same
// sides). Near is what differs by a factor of four at most in each of sq, sk and the number of
// query heads in all; the nearest has the least sum of squared logarithms. Strides, scale and
// heads a group do not count. Requires rows whose problem is a problem line.
Nearest nearest(const std::vector<Row>& rows, const Problem& wanted);

}  // namespace dfa::profile
