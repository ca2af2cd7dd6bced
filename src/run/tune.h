#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dfa/problem.h"
#include "profile/store.h"
#include "run/points.h"

namespace dfa::run {

struct TuneOptions {
  PointOptions points;
  double budget_s = 60;  // no measurement is begun that would end later
  // Each configuration at these clocks too, after the card's own. lock_clock turns them, 0 being
  // the card's own, before and again after each row, and throws where they are not held. Whoever
  // lends them puts them back.
  std::vector<double> clocks_hz{};
  std::function<void(double)> lock_clock{};
  std::function<bool()> interrupted{};
  // Rows done, rows in all, seconds left by what rows took so far, what is being measured.
  std::function<void(int, int, double, const std::string&)> on_progress{};
};

struct TuneReport {
  int measured = 0;
  int kept = 0;                        // measured before on this very machine
  int wrong = 0;                       // failed their check
  int left = 0;                        // for which there was no time
  std::vector<std::string> refused{};  // no memory, or no less exact type: a line each

  // Is there no row, of this run or before, for what was refused?
  bool only_refused() const { return measured + kept + wrong + left == 0 && !refused.empty(); }
};

// Rows for every problem: the default configuration and tiles near it. Each row is in the store
// when the next begins; a second call goes on where the first was ended.
TuneReport tune(const std::vector<Problem>& problems, profile::Store& store,
                const TuneOptions& options, Clock& clock);

// The machine that rows of this backend and pass are of.
profile::Machine machine_of(const std::string& backend, Pass pass);

// What rows say of a problem: candidates on the frontier, the fastest first, and in words of which
// problem, card and day the rows are, or why there are none.
struct KnownPoints {
  std::vector<Candidate> candidates{};
  std::string told{};
};

// Of rows that hold here, those of this problem or else of the nearest of its kind
// (profile/nearest.h), whose configurations this problem can have. Of those that store
// probabilities only what fits into memory_bytes (PointOptions), and of other types than the
// problem's that of spec/less_exact.h alone, where the options say so and the backend has it.
KnownPoints known_points(const Problem& problem, const std::vector<profile::Row>& rows,
                         const PointOptions& options);

// The same of the store's rows that hold on this machine.
KnownPoints stored_points(const Problem& problem, const profile::Store& store,
                          const PointOptions& options);

}  // namespace dfa::run
