#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "dfa/error.h"
#include "kernels/launch.h"
#include "plan/pack_gqa.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "problem_lines.h"
#include "spec/limits.h"
#include "spec/passes.h"

namespace dfa {

// A kernel and the first problem line that takes it where nothing is asked for.
struct DefaultKernel {
  std::string problem;
  KernelLaunch launch;
};

inline void add_defaults(std::map<std::string, DefaultKernel>& kernels, const std::string& line,
                         const Limits& limits) {
  const Problem problem = with_pack_gqa(parse_problem(line));
  const auto add = [&](const Verdict& legal, const auto& launches) {
    if (!legal) return;
    for (const KernelLaunch& launch : launches()) {
      kernels.try_emplace(launch.entry, DefaultKernel{line, launch});
    }
  };
  if (has_forward(problem)) {
    const ForwardConfig config = select_forward(problem, limits);
    add(validate_config(config, problem, limits),
        [&] { return forward_launches(problem, config); });
  }
  if (has_backward(problem)) {
    const BackwardConfig config = select_backward(problem, limits);
    add(validate_config(config, problem, limits),
        [&] { return backward_launches(problem, config); });
  }
}

// Of every line of problems/.
inline std::map<std::string, DefaultKernel> defaults_of_problem_files(const Limits& limits) {
  std::map<std::string, DefaultKernel> kernels;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(DFA_SOURCE_DIR) + "/problems")) {
    for (const std::string& line : problem_lines(file.path().filename().string())) {
      add_defaults(kernels, line, limits);
    }
  }
  return kernels;
}

}  // namespace dfa
