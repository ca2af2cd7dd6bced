#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dfa::cli {

// What `dfa cache warm` is told.
struct WarmArguments {
  std::vector<std::string> problems{};  // lines
  std::string problem_file{};
  std::string model{};  // a config.json
  std::string pass = "fwd", dtype{}, batches = "1-8", lengths{};
  bool deterministic = false;
  std::string arch{};
  int sm_count = 0;
  std::string algorithm = "auto";
  int jobs = 0;
  bool json = false;
};

// Compiles and keeps what plans would run; says it kernel by kernel. Throws, once all others were
// had, where a kernel cannot be compiled or kept.
void warm_kernel_cache(const WarmArguments& arguments);

}  // namespace dfa::cli
