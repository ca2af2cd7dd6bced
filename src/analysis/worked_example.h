#pragma once

#include <string>
#include <vector>

#include "dfa/problem.h"

// The table of the first FlashAttention paper (Dao et al. 2022, figure 2 left): forward and
// backward of one attention layer, b 64, 16 heads, length 1024, head dim 64, fp16, on an A100 40
// GB.
namespace dfa::analysis {

enum class Agreement : int {
  derived,  // counted from the shapes; equal to the published number within rounding
  assumed,  // so too, but under one of several plausible orders of the loops
  fitted,   // equal within rounding, but with a constant chosen to make it so
  bound,    // the published number is a measured time; ours is the least time possible
};

struct PublishedNumber {
  std::string what;      // e.g. "traffic, standard"
  std::string unit;      // GFLOP | GB | ms
  double published = 0;  // one decimal place
  double computed = 0;   // what should round to it, or the bound
  double direct = 0;     // by this library's own counts, without assumptions on how they counted
  Agreement agreement = Agreement::derived;
  std::string assumptions;
};

Problem worked_example_problem();

// The six numbers in the paper's order: operations, traffic, time; standard before FlashAttention.
std::vector<PublishedNumber> worked_example();

const char* name_of(Agreement agreement);

// Is `computed` the published number when rounded to one decimal place?
bool rounds_to_published(const PublishedNumber& number);

}  // namespace dfa::analysis
