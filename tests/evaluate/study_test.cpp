#include "evaluate/study.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "dfa/error.h"
#include "evaluate/command.h"
#include "temp_dir.h"

namespace dfa::evaluate {
namespace {

namespace fs = std::filesystem;

// Steps of the shell in a folder of their own; each run of one adds its name to `ran`.
class StudySteps : public ::testing::Test {
 protected:
  StudySteps() {
    run_.out = out_;
    run_.machine = "this machine";
  }

  StudyStep step(const std::string& name, const std::string& script, bool makes_file = true) const {
    const fs::path file = out_ / (name + ".json");
    const std::string touch = makes_file ? "; echo {} > " + file.string() : "";
    return {
        .name = name,
        .question = "what?",
        .commands = {{{"sh", "-c",
                       "echo " + name + " >> " + (out_ / "ran").string() + "; " + script + touch}}},
        .outputs = {file},
        .estimate_s = 1};
  }
  std::string ran() const { return fs::exists(out_ / "ran") ? read_file(out_ / "ran") : ""; }

  const testing::TempDir folder_;
  const fs::path out_ = folder_.path();
  StudyRun run_;
};

TEST_F(StudySteps, WhatIsDoneIsNotRepeatedButTheReportIs) {
  std::vector<StudyStep> steps{step("a", "true"), step("b", "true"), step("report", "true")};
  steps[2].always = true;
  const StudyRecord first = run_steps(steps, run_);
  for (const StepRecord& record : first.steps) EXPECT_EQ(record.status, StepStatus::done);
  run_steps(steps, run_);
  EXPECT_EQ(ran(), "a\nb\nreport\nreport\n");
  EXPECT_EQ(read_record(out_).steps.size(), 3u);
}

TEST_F(StudySteps, AnIgnoredInterruptIsHeardByWhatItRuns) {
  ::signal(SIGINT, SIG_IGN);
  const Ended ended =
      run_command({{"sh", "-c", "kill -INT $$; exit 3"}}, out_ / "log", [] { return false; });
  ::signal(SIGINT, SIG_DFL);
  EXPECT_EQ(ended.signal, SIGINT) << ended.reason;
}

TEST_F(StudySteps, AFailureIsToldAndTriedAgainAndTheOthersGoOn) {
  std::vector<StudyStep> steps{step("a", "echo no luck; exit 3", false), step("b", "true")};
  const StudyRecord first = run_steps(steps, run_);
  EXPECT_EQ(first.steps[0].status, StepStatus::failed);
  EXPECT_EQ(first.steps[0].reason, "sh ended with 3: no luck");
  EXPECT_EQ(first.steps[1].status, StepStatus::done);
  run_steps(steps, run_);
  EXPECT_EQ(ran(), "a\nb\na\n");
}

TEST_F(StudySteps, AStepWithoutItsFileIsNotDone) {
  const StudyRecord record = run_steps({step("a", "true", false)}, run_);
  EXPECT_EQ(record.steps[0].status, StepStatus::failed);
}

TEST_F(StudySteps, AFileThatWentAwayIsMadeAnew) {
  const std::vector<StudyStep> steps{step("a", "true")};
  run_steps(steps, run_);
  fs::remove(out_ / "a.json");
  run_steps(steps, run_);
  EXPECT_EQ(ran(), "a\na\n");
}

TEST_F(StudySteps, OtherCommandsAreAnotherStep) {
  run_steps({step("a", "true")}, run_);
  run_steps({step("a", ":")}, run_);
  EXPECT_EQ(ran(), "a\na\n");
}

TEST_F(StudySteps, CasesThatFailedAreAResultWithANote) {
  StudyStep one = step("a", "true");
  one.commands[0].words[2] += "; exit 1";
  const StudyRecord record = run_steps({one}, run_);
  EXPECT_EQ(record.steps[0].status, StepStatus::done);
  EXPECT_NE(record.steps[0].reason.find("log/a.txt"), std::string::npos);
}

TEST_F(StudySteps, ASuiteOfWhichNothingCanBeMeasuredHereIsNoFailure) {
  StudyStep suite = step("a", "true");
  suite.suite = true;
  suite.commands[0].words[2] += "; echo nothing was measured; exit 3";
  const StudyRecord record = run_steps({suite}, run_);
  EXPECT_EQ(record.steps[0].status, StepStatus::cannot);
  EXPECT_EQ(record.steps[0].reason, "nothing was measured");
}

TEST_F(StudySteps, WhatCannotRunHereSaysWhyAndHasNoCommand) {
  StudyStep one = step("a", "true");
  one.cannot = "no card";
  const StudyRecord record = run_steps({one}, run_);
  EXPECT_EQ(record.steps[0].status, StepStatus::cannot);
  EXPECT_EQ(record.steps[0].reason, "no card");
  EXPECT_EQ(ran(), "");
}

TEST_F(StudySteps, AProgramThatIsNotThereIsAReason) {
  StudyStep one = step("a", "true");
  one.commands = {{{"no-such-program-here"}}};
  EXPECT_EQ(run_steps({one}, run_).steps[0].reason,
            "no-such-program-here cannot be started: it said nothing");
}

TEST_F(StudySteps, OutputOfACommandIsAFileOnlyWhenItEndedWell) {
  StudyStep good = step("a", "true", false), bad = step("b", "true", false);
  good.commands = {{{"echo", "{}"}, good.outputs[0]}};
  bad.commands = {{{"sh", "-c", "echo half; exit 2"}, bad.outputs[0]}};
  const StudyRecord record = run_steps({good, bad}, run_);
  EXPECT_EQ(record.steps[0].status, StepStatus::done);
  EXPECT_EQ(read_file(out_ / "a.json"), "{}\n");
  EXPECT_EQ(record.steps[1].status, StepStatus::failed);
  EXPECT_FALSE(fs::exists(out_ / "b.json"));
}

TEST_F(StudySteps, AnInterruptEndsTheStepAndTheNextStudyGoesOn) {
  const double begin = monotonic_s();
  run_.interrupted = [&] { return monotonic_s() - begin > 0.3; };
  std::vector<StudyStep> steps{step("a", "true"), step("b", "sleep 30"), step("c", "true")};
  const StudyRecord record = run_steps(steps, run_);
  EXPECT_LT(monotonic_s() - begin, 8);
  EXPECT_EQ(record.steps[0].status, StepStatus::done);
  EXPECT_EQ(record.steps[1].status, StepStatus::left);
  EXPECT_EQ(record.steps[2].status, StepStatus::left);
  run_.interrupted = [] { return false; };
  steps[1] = step("b", "true");
  run_steps(steps, run_);
  EXPECT_EQ(ran(), "a\nb\nb\nc\n");
}

TEST_F(StudySteps, AKilledStudyTakesItsCommandAlongAndGoesOn) {
  const std::vector<StudyStep> steps{step("a", "true"), step("b", "sleep 1")};
  const int pid = ::fork();
  if (pid == 0) {
    run_steps(steps, run_);
    ::_exit(0);
  }
  for (int i = 0; i < 500 && ran() != "a\nb\n"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  EXPECT_FALSE(fs::exists(out_ / "b.json"));  // its shell ended, too
  EXPECT_EQ(read_record(out_).steps[0].status, StepStatus::done);
  EXPECT_EQ(read_record(out_).steps[1].status, StepStatus::left);
  const StudyRecord record = run_steps(steps, run_);
  EXPECT_EQ(record.steps[1].status, StepStatus::done);
  EXPECT_EQ(ran(), "a\nb\nb\n");
}

TEST_F(StudySteps, TheFolderOfAnotherMachineOrOfSomethingElseIsRefused) {
  run_steps({step("a", "true")}, run_);
  run_.machine = "another";
  EXPECT_THROW(run_steps({step("a", "true")}, run_), InvalidArgument);
  std::ofstream(out_ / "study.json") << "{\"schema\": \"x\"}";
  EXPECT_THROW(run_steps({step("a", "true")}, run_), InvalidArgument);
}

TEST_F(StudySteps, TimeLeftIsCorrectedByWhatStepsTook) {
  std::vector<double> left;
  run_.on_step = [&](const StudyProgress& progress) { left.push_back(progress.left_s); };
  std::vector<StudyStep> steps{step("a", "sleep 0.2"), step("b", "true"), step("c", "true")};
  for (StudyStep& one : steps) one.estimate_s = 100;
  run_steps(steps, run_);
  ASSERT_EQ(left.size(), 3u);
  EXPECT_EQ(left[0], 300);
  EXPECT_GT(left[1], 0.3);
  EXPECT_LT(left[1], 10);
}

}  // namespace
}  // namespace dfa::evaluate
