#include "run/governed.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sensors/nvml_world.h"
#include "sensors/system_clock.h"

namespace dfa::run {
namespace {

using dfa::testing::NvmlWorld;

const GpuIdentity kGpu{.pci_id = "0000:5e:00.0", .name = "NVIDIA H200", .sm_count = 132};

std::string card_with(const std::string& processes) {
  return "clock real\ndriver 580.1\ncard H200 GPU-bb 00000000:5E:00.0\npower constant 300\n"
         "tick 0.02\ntemperature 61 70\nclocks 1.755e9 3.2e9\nlimit 700\n" +
         processes;
}

// Work of a processor, under the sensors of a made-up card.
struct Rig {
  explicit Rig(std::initializer_list<const char*> lines) {
    for (const char* line : lines) {
      problems.push_back(parse_problem(line));
      all_buffers.push_back(std::make_unique<measure::ProblemBuffers>(problems.back(), "cpu", 1));
      Candidate candidate;
      candidate.plans = measure::prepare(problems.back(), {.backend = "cpu", .threads = 1});
      candidate.point = {.label = line, .time_s = 1e-4, .power_w = 650, .takes_sm_budget = false};
      loads.push_back({*all_buffers.back(), {candidate}});
    }
  }
  Governed run(const RunOptions& options) {
    sensors::SystemClock clock;
    return run_governed(loads, options, kGpu, 120.0, clock);
  }

  std::vector<Problem> problems;
  std::vector<std::unique_ptr<measure::ProblemBuffers>> all_buffers;
  std::vector<Load> loads;
};

constexpr const char* kShort = "fwd fp32 b1 h1 s32 d16";
constexpr const char* kLong = "fwd fp32 b1 h2 s64 d16";

RunOptions capped(double seconds) {
  return {.sections = {{{power::Goal::power_cap, 500}, seconds}}};
}

bool any_foreign(const Governed& governed) {
  return std::any_of(
      governed.trace.decisions.begin(), governed.trace.decisions.end(),
      [](const power::Decision& d) { return d.status == power::PolicyStatus::foreign; });
}

TEST(Run, AnotherProcessOnTheCardIsTold) {
  const NvmlWorld world(card_with("process own\nprocess 17\n"));
  const Governed governed = Rig({kShort}).run(capped(0.8));
  EXPECT_TRUE(any_foreign(governed));
  EXPECT_GT(governed.calls, 0);
}

TEST(Run, AloneOnTheCardNobodyIsTold) {
  const NvmlWorld world(card_with("process own\n"));
  const Governed governed = Rig({kShort}).run(capped(0.8));
  EXPECT_FALSE(any_foreign(governed));
  ASSERT_GE(governed.trace.samples.size(), 5u);
  EXPECT_EQ(governed.trace.samples.back().cap_w, 500);
  EXPECT_EQ(governed.trace.samples.back().temp_c, 61);
}

TEST(Run, LoadsTakeTurnsEachByItsOwnPoints) {
  const NvmlWorld world(card_with("process own\n"));
  RunOptions options = capped(1);
  options.load_s = 0.25;
  options.max_error = 1e-2;
  const Governed governed = Rig({kShort, kLong}).run(options);
  std::vector<std::size_t> points;
  for (const power::Decision& decision : governed.trace.decisions) {
    if (points.empty() || points.back() != decision.action.point) {
      points.push_back(decision.action.point);
    }
  }
  EXPECT_EQ(points, (std::vector<std::size_t>{0, 1, 0, 1}));
  EXPECT_EQ(governed.unwatched, "");
  EXPECT_GE(governed.guard.checks, 2);
  EXPECT_GT(governed.guard.worst, 0);
  EXPECT_LT(governed.guard.worst, 1e-5);
}

TEST(Run, OutputsThatNobodyCanRecomputeAreToldAsUnwatched) {
  const NvmlWorld world(card_with("process own\n"));
  RunOptions options = capped(0.4);
  options.max_error = 1e-2;
  const Governed governed = Rig({"fwd fp32 h1 lens(20,30) d16"}).run(options);
  EXPECT_NE(governed.unwatched.find("packed"), std::string::npos) << governed.unwatched;
  EXPECT_EQ(governed.guard.checks, 0);
}

TEST(Run, APolicyThatNoPointOfALoadCanFollowIsRefusedBeforeAnythingRuns) {
  Rig rig({kShort, kLong});
  rig.loads[1].candidates[0].point.power_w.reset();
  EXPECT_THROW(rig.run(capped(1)), Unsupported);
}

}  // namespace
}  // namespace dfa::run
