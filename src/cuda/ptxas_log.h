#pragma once

#include <string>

namespace dfa::cuda {

// What ptxas said with -v: the most of every function, and spills and stack of all of them.
struct PtxasReport {
  int registers = 0;    // per thread
  int smem_bytes = 0;   // static, per block
  int spill_bytes = 0;  // stores and loads
  int stack_bytes = 0;  // arrays that are indexed at run time, and spills
  // The first line in which ptxas says that it gave up on something: setmaxnreg ignored (C7508),
  // wgmma serialized (C7510, C7511), and whatever else it calls a potential performance loss.
  std::string warning;
};

PtxasReport read_ptxas_log(const std::string& log);

}  // namespace dfa::cuda
