#include "bench/suites.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "dfa/error.h"

namespace dfa::bench {
namespace {

TEST(Suites, EveryProblemIsLegalUniqueAndOfKnownAlgorithmsAtBothScales) {
  EXPECT_EQ(suite_list().size(), 12u);
  for (const SuiteInfo& suite : suite_list()) {
    for (const Scale scale : {Scale::cpu, Scale::full}) {
      std::set<std::string> lines;
      for (const ProblemGroup& group : make_suite(suite.name, scale)) {
        EXPECT_NO_THROW(validate(group.problem));
        const std::string line = to_line(group.problem);
        EXPECT_EQ(parse_problem(line), group.problem);
        EXPECT_TRUE(lines.insert(line).second) << suite.name << " has twice: " << line;
        EXPECT_LE(group.problem.d, 256);
        for (const std::string& algorithm : group.algorithms) {
          const auto& known = algorithm_names();
          EXPECT_NE(std::find(known.begin(), known.end(), algorithm), known.end()) << algorithm;
        }
      }
      EXPECT_GE(lines.size(), 5u) << suite.name;
    }
  }
}

bool has(const std::vector<ProblemGroup>& groups, const std::string& line) {
  return std::any_of(groups.begin(), groups.end(), [&](const ProblemGroup& group) {
    return group.problem == parse_problem(line);
  });
}

TEST(Suites, TheThreeWayStudyAtFullSizeIsTheOneOfTheReports) {
  const auto groups = make_suite("three_way", Scale::full);
  for (const char* line :
       {"fwd fp32 b16 h8 s512 d64", "fwd fp32 b16 h8 s1024 d64", "fwd fp16 b16 h8 s128 d64",
        "fwd fp16 b16 h8 s2048 d64", "fwd fp16 b128 h8 s512 d64"}) {
    EXPECT_TRUE(has(groups, line)) << line;
  }
  EXPECT_EQ(groups[0].algorithms, (std::vector<std::string>{"standard", "flash", "dynamic"}));
}

TEST(Suites, ShortCallsAreMadeBothWays) {
  const auto groups = make_suite("launch", Scale::full);
  EXPECT_TRUE(has(groups, "fwd bf16 causal b1 h16 s64 d64"));
  EXPECT_EQ(groups[0].launches, (std::vector<Launch>{Launch::eager, Launch::graph}));
  EXPECT_EQ(groups[0].calls, 32);
  EXPECT_EQ(parse_launch("graph"), Launch::graph);
  for (const Launch launch : {Launch::eager, Launch::graph, Launch::compile,
                              Launch::compile_reduce_overhead, Launch::compile_max_autotune}) {
    EXPECT_EQ(parse_launch(name_of(launch)), launch);
    EXPECT_EQ(is_compiled(launch), std::string(name_of(launch)).rfind("compile", 0) == 0);
  }
  try {
    parse_launch("lazy");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "launch 'lazy'; accepted: eager, graph, compile, compile-reduce-overhead, "
                 "compile-max-autotune");
  }
}

TEST(Suites, UnknownNamesListWhatThereIs) {
  try {
    make_suite("sequense", Scale::cpu);
    ADD_FAILURE();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("three_way, sequence"), std::string::npos);
  }
  EXPECT_THROW(parse_scale("big"), InvalidArgument);
}

TEST(Suites, ProblemListsSkipBlankLinesAndCommentsAndNameBadLines) {
  const auto groups =
      parse_problem_list("# mine\n\nfwd fp32 b1 h1 s8 d8\r\n  bwd bf16 b1 h1 s8 d8", {"flash"});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].suite, "custom");
  EXPECT_EQ(groups[1].problem.pass, Pass::backward);
  try {
    parse_problem_list("fwd fp32 b1 h1 s8 d8\nfwd fp33 b1", {"flash"});
    ADD_FAILURE();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("line 2"), std::string::npos) << error.what();
  }
  EXPECT_THROW(parse_problem_list("# nothing\n", {"flash"}), InvalidArgument);
}

// The kernels of FlashAttention-2's class, so that "dynamic" beside it shows what choosing brings.
TEST(Suites, TheThreeWayStudyAloneHasAStaticFlash) {
  for (const SuiteInfo& suite : suite_list()) {
    for (const ProblemGroup& group : make_suite(suite.name, Scale::full)) {
      EXPECT_EQ(group.static_flash, suite.name == "three_way") << suite.name;
    }
  }
}

}  // namespace
}  // namespace dfa::bench
