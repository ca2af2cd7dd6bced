#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "evaluate/steps.h"

namespace dfa::evaluate {

inline constexpr const char* kStudySchema = "dfa-study/1";

// done: its files are there. cannot: not on this machine. left: not begun, or ended half way.
enum class StepStatus : int { done, failed, cannot, left };
const char* name_of(StepStatus status);

struct StepRecord {
  std::string name;
  std::string question;
  StepStatus status = StepStatus::left;
  std::string reason{};  // of failed and cannot; of done, what is left out or went wrong in it
  double seconds = 0;    // that it took
  std::vector<std::string> commands{};
  std::vector<std::string> outputs{};
};

struct StudyRecord {
  std::string created;
  std::string machine;  // the card or processor: one a study
  std::vector<StepRecord> steps;
};

// Told before each step that is run: which, of how many, and the seconds left, as far as is known.
struct StudyProgress {
  const StudyStep& step;
  std::size_t number = 0;
  std::size_t count = 0;
  double left_s = 0;
};

struct StudyRun {
  std::filesystem::path out;
  std::string machine;
  std::function<bool()> interrupted = [] { return false; };
  std::function<void(const StudyProgress&)> on_step = [](const StudyProgress&) {};
  std::function<void(const StepRecord&, bool kept)> on_done = [](const StepRecord&, bool) {};
};

// Runs the steps that out/study.json does not call done by the same commands, writing that file
// after each; what the commands print goes to out/log. Throws InvalidArgument where the folder
// holds the study of another machine, IoError where another process runs a study in it.
StudyRecord run_steps(const std::vector<StudyStep>& steps, const StudyRun& run);

StudyRecord read_record(const std::filesystem::path& out);  // empty where there is none

}  // namespace dfa::evaluate
