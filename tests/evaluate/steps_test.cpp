#include "evaluate/steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace dfa::evaluate {
namespace {

Tools all_tools() {
  return {.dfa = "/bin/dfa",
          .source = "/src",
          .report_python = {"py"},
          .torch_python = {"torchpy"},
          .training_python = {"trainpy"},
          .several_cards = {"cardspy"},
          .ncu = {"ncu"}};
}

const StudyStep& named(const std::vector<StudyStep>& steps, const std::string& name) {
  return *std::find_if(steps.begin(), steps.end(),
                       [&](const StudyStep& s) { return s.name == name; });
}

bool says(const StudyStep& step, const std::string& words) {
  return std::any_of(step.commands.begin(), step.commands.end(), [&](const Command& command) {
    return to_text(command).find(words) != std::string::npos;
  });
}

TEST(Steps, EachHasAQuestionCommandsFilesAndAnEstimate) {
  const auto steps = make_steps({.out = "/o"}, all_tools());
  std::set<std::string> names;
  for (const StudyStep& step : steps) {
    EXPECT_TRUE(names.insert(step.name).second) << step.name;
    EXPECT_FALSE(step.question.empty()) << step.name;
    EXPECT_FALSE(step.commands.empty()) << step.name;
    EXPECT_FALSE(step.outputs.empty()) << step.name;
    EXPECT_GT(step.estimate_s, 0) << step.name;
  }
  EXPECT_EQ(steps.back().name, "report");
  EXPECT_TRUE(steps.back().always);
}

TEST(Steps, EverySuiteOfTheBenchIsInTheStudy) {
  const auto steps = make_steps({.out = "/o"}, all_tools());
  for (const bench::SuiteInfo& suite : bench::suite_list()) {
    EXPECT_TRUE(says(named(steps, suite.name), "--suite " + suite.name));
  }
}

TEST(Steps, AGpuHasPeersAndCountersWhereTheirProgramsAre) {
  const StepOptions options{
      .out = "/o", .backend = "cuda", .scale = bench::Scale::full, .machine = "h200"};
  const auto steps = make_steps(options, all_tools());
  EXPECT_TRUE(says(named(steps, "sequence"), "DFA_PYTHON=torchpy"));
  EXPECT_TRUE(says(named(steps, "forward_backward"), "--peers torch-efficient,torch-math"));
  EXPECT_TRUE(says(named(steps, "launch"), "--launch eager,graph,compile,"));
  EXPECT_FALSE(says(named(steps, "sequence"), "--launch"));
  EXPECT_EQ(named(steps, "hbm").cannot, "");
  Tools few = all_tools();
  few.torch_python = {.missing = "no torch"};
  few.ncu = {.missing = "no ncu"};
  const auto fewer = make_steps(options, few);
  EXPECT_FALSE(says(named(fewer, "sequence"), "--peers"));
  EXPECT_FALSE(says(named(fewer, "launch"), "compile"));
  EXPECT_EQ(named(fewer, "sequence").note, "without PyTorch: no torch");
  EXPECT_EQ(named(fewer, "hbm").cannot, "no ncu");
}

TEST(Steps, AProcessorHasNeitherPeersNorCountersAndSaysWhy) {
  const auto steps = make_steps({.out = "/o"}, all_tools());
  EXPECT_FALSE(says(named(steps, "sequence"), "--peers"));
  EXPECT_NE(named(steps, "sequence").note.find("GPU"), std::string::npos);
  EXPECT_NE(named(steps, "hbm").cannot.find("backend cpu"), std::string::npos);
}

TEST(Steps, JoulesAreMeasuredWhereTheQuestionIsAboutThem) {
  const auto steps = make_steps({.out = "/o"}, all_tools());
  EXPECT_FALSE(says(named(steps, "three_way"), "--no-energy"));
  EXPECT_TRUE(says(named(steps, "heatmap"), "--no-energy"));
  EXPECT_TRUE(
      says(named(make_steps({.out = "/o", .extent = Extent::quick}, all_tools()), "three_way"),
           "--no-energy --seconds 1"));
  EXPECT_LT(named(make_steps({.out = "/o", .energy = false}, all_tools()), "three_way").estimate_s,
            named(steps, "three_way").estimate_s);
}

TEST(Steps, ABriefStudyHasJoulesOfTheThreeWayStudyAlone) {
  const StepOptions options{.out = "/o",
                            .backend = "cuda",
                            .scale = bench::Scale::full,
                            .extent = Extent::brief,
                            .machine = "h200"};
  const auto steps = make_steps(options, all_tools());
  EXPECT_TRUE(says(named(steps, "three_way"), "--seconds 4 --energy-seconds 1"));
  EXPECT_FALSE(says(named(steps, "three_way"), "--no-energy"));
  EXPECT_TRUE(says(named(steps, "sequence"), "--no-energy --seconds 4"));
  EXPECT_TRUE(says(named(steps, "training"), "--steps 100 --seeds 2"));
  StepOptions whole = options;
  whole.extent = Extent::whole;
  const auto longer = make_steps(whole, all_tools());
  double brief_s = 0, whole_s = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    brief_s += steps[i].estimate_s;
    whole_s += longer[i].estimate_s;
  }
  EXPECT_LT(brief_s, 0.5 * whole_s);
}

TEST(Steps, SeveralCardsAreRunWherePyTorchSeesThem) {
  StepOptions options{
      .out = "/o", .backend = "cuda", .scale = bench::Scale::full, .machine = "h200"};
  const StudyStep cards = named(make_steps(options, all_tools()), "context_parallel");
  EXPECT_EQ(cards.cannot, "");
  EXPECT_TRUE(says(cards,
                   "cardspy -m torch.distributed.run --standalone --nproc-per-node=gpu "
                   "/src/benchmarks/context_parallel.py --out /o/context_parallel.json"));
  EXPECT_FALSE(says(cards, "--energy-seconds"));
  options.energy = false;
  EXPECT_TRUE(
      says(named(make_steps(options, all_tools()), "context_parallel"), "--energy-seconds 0"));
  Tools one = all_tools();
  one.several_cards = {.missing = "one GPU"};
  EXPECT_EQ(named(make_steps(options, one), "context_parallel").cannot, "one GPU");
  EXPECT_EQ(named(make_steps({.out = "/o"}, all_tools()), "context_parallel").cannot,
            "backend cpu: the cards are GPUs");
}

TEST(Steps, WithoutACheckoutThereIsNoReportAndAReason) {
  Tools tools = all_tools();
  tools.source_there = {.missing = "'/src' is no checkout"};
  EXPECT_EQ(named(make_steps({.out = "/o"}, tools), "report").cannot, "'/src' is no checkout");
}

}  // namespace
}  // namespace dfa::evaluate
