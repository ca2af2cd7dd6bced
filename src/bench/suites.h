#pragma once

#include <string>
#include <vector>

#include "dfa/problem.h"

namespace dfa::bench {

// full: the sizes of the studies, for a GPU. cpu: the same questions at sizes a few cores answer
// within a minute a suite.
enum class Scale : int { cpu, full };

Scale parse_scale(const std::string& text);  // throws InvalidArgument
const char* name_of(Scale scale);

// The algorithms that suites know.
const std::vector<std::string>& algorithm_names();

// eager: every call queues its kernels. graph: the calls are recorded once and replayed. compile…:
// the modes of torch.compile, which PyTorch alone has.
enum class Launch : int { eager, graph, compile, compile_reduce_overhead, compile_max_autotune };

constexpr bool is_compiled(Launch launch) { return launch >= Launch::compile; }

const std::vector<std::string>& launch_names();  // in the enumerators' order
Launch parse_launch(const std::string& text);    // throws InvalidArgument
const char* name_of(Launch launch);

// One problem, the algorithms to compare on it, and how to launch them.
struct ProblemGroup {
  std::string suite;
  Problem problem;
  std::vector<std::string> algorithms;
  std::vector<Launch> launches{Launch::eager};
  int calls = 0;  // one after the other in each timed run, as the layers of a model make them; 0:
                  // as many as keep a GPU busy
  bool static_flash = false;  // "flash" is that of FlashAttention-2's class on every GPU
};

struct SuiteInfo {
  std::string name;
  std::string question;  // what the suite answers
};

const std::vector<SuiteInfo>& suite_list();

// This suite is no set of problems: ranks of PyTorch run one sequence over several cards.
inline constexpr const char* kSeveralCardsSuite = "context_parallel";

// Throws InvalidArgument listing the suites that are there.
std::vector<ProblemGroup> make_suite(const std::string& name, Scale scale);

// One group a line of text; blank lines and lines that start with # are skipped. Throws
// InvalidArgument naming the line.
std::vector<ProblemGroup> parse_problem_list(const std::string& text,
                                             const std::vector<std::string>& algorithms);

}  // namespace dfa::bench
