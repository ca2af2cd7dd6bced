#pragma once

#include <string>

namespace dfa::cuda {

// What ptxas said with -v: the most of every function, and spills and stack of all of them.
struct PtxasReport {
  int registers = 0;    // per thread
  int smem_bytes = 0;   // static, per block
  int spill_bytes = 0;  // stores and loads
  int stack_bytes = 0;  // arrays that are indexed at run time, and spills
  std::string
      warning;  // the first line with C7508 (setmaxnreg ignored) or C7510 (wgmma serialized)
};

PtxasReport read_ptxas_log(const std::string& log);

}  // namespace dfa::cuda
