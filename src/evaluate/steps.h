#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/suites.h"
#include "evaluate/command.h"
#include "evaluate/tools.h"

namespace dfa::evaluate {

// One part of the evaluation: commands that leave files behind.
struct StudyStep {
  std::string name;
  std::string question;
  std::vector<Command> commands{};
  std::vector<std::filesystem::path> outputs{};  // there when it is done
  double estimate_s = 0;
  std::string cannot{};  // why it cannot be run here; empty: it can
  std::string note{};    // what is left out here, and why
  bool always = false;   // run again in every study: it depends on the others
  bool suite = false;    // of `dfa bench`, which the report is of
};

// How much of it: a second a suite and no joules, to see that everything works; some seconds a
// suite and joules for the three-way study alone, over windows of a second; or as long as each
// takes.
enum class Extent : int { quick, brief, whole };

struct StepOptions {
  std::filesystem::path out;
  std::string backend = "cpu";
  bench::Scale scale = bench::Scale::cpu;
  Extent extent = Extent::whole;
  bool energy = true;     // sustained runs, seconds a case
  std::string machine{};  // of `dfa analyze`; "this" for the CPU
};

// The whole evaluation, in the order in which it is read; the report is the last.
std::vector<StudyStep> make_steps(const StepOptions& options, const Tools& tools);

}  // namespace dfa::evaluate
