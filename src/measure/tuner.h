#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "contract/clock.h"
#include "measure/problem_buffers.h"
#include "spec/limits.h"

// Choosing a tile by measuring: short, before the timing, and reported apart from it.
namespace dfa::measure {

// How a configuration was found by measurement, before and apart from the timing.
struct Search {
  double seconds = 0;
  int tried = 0;
  int candidates = 0;
  friend bool operator==(const Search&, const Search&) = default;
};

struct SearchOptions {
  double budget_s = 0.5;
  int final_rounds = 7;
  double least_gain = 0.01;  // a winner must beat the default by this fraction
};

struct FastestOf {
  std::size_t index = 0;
  Search search;
};

// Which of `count` candidates runs fastest; 0 is the default and wins ties. Tries them in order
// until a part of the budget is gone, then repeats the best few and the default in turns. A
// candidate that throws InvalidArgument or Unsupported is passed over; the default must run.
FastestOf find_fastest(std::size_t count, const std::function<void(std::size_t)>& run,
                       const SearchOptions& options, const Clock& clock);

// Legal configurations of the default plan's instruction set, the default first, then by distance
// of the tile sides from it, as text.
std::vector<std::string> tile_candidates(const Plan& default_plan, const Limits& limits);

// The plans of a forward with its backward that keep P between them; none where the problem is
// another, or the backend has no standard attention for it.
std::optional<PassPlans> stored_plans(const Problem& problem, const PlanOptions& options);

// The plans of the problem's passes, each with the tile that ran fastest; of a forward with its
// backward those that keep P between them, where there is memory and they run faster. Throws what
// planning and running the defaults throw.
struct Tuned {
  PassPlans plans;
  Search search;
};

Tuned tune(ProblemBuffers& buffers, const PlanOptions& options, const SearchOptions& search,
           const Clock& clock);

}  // namespace dfa::measure
