#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/result.h"

namespace dfa::bench {

// How B stands to A. In joules, faster means fewer and slower means more.
enum class Change : int { same, faster, slower, unclear, not_measured };

const char* name_of(Change change);

// A value with the half-width of its 95 % interval as a fraction of it.
struct Interval {
  double value = 0;
  double relative = 0;
};

// By the interval of b / a - 1: inside ±tolerance it is the same, wholly above slower, wholly below
// faster, else unclear.
Change judge(const Interval& a, const Interval& b, double tolerance);

struct CaseComparison {
  std::string suite;
  std::string problem;
  std::string algorithm;
  std::string backend;
  Change time = Change::not_measured;
  Change joules = Change::not_measured;
  std::optional<double> time_ratio{};  // B over A
  std::optional<double> joules_ratio{};
  std::string note{};  // where something is not ok, or no longer measured
  bool worse = false;  // slower, more joules, failed or wrong in B, or no longer ok or timed
};

struct Comparison {
  std::vector<CaseComparison> cases;
  std::vector<std::string> only_a;
  std::vector<std::string> only_b;
  std::vector<std::string> machine;  // where the machines differ: "threads: 8, then 4"

  bool nothing_timed() const;  // no case has a time in both: nothing was compared
  bool worse() const;          // a case got worse or is gone, or nothing was compared
};

// Matches cases by suite, problem, algorithm and backend. Tolerance: what counts as no change, as a
// fraction. Throws InvalidArgument when a file has two cases with the same key.
Comparison compare(const Result& a, const Result& b, double tolerance);

std::string to_json(const Comparison& comparison);

}  // namespace dfa::bench
