#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dfa/error.h"

namespace dfa::cuda {

// One kernel to compile. Equal requests give equal code (of one compiler and one version of ours).
struct CompileRequest {
  std::string source;           // its file in kernel_sources(), e.g. "kernels/forward/x.cuh"
  std::string name_expression;  // the kernel as C++ text, e.g. "dfa::forward<{.block_q = 64}>"
  std::string arch;             // "sm_80", "sm_90a"; DeviceFacts::arch()
  std::vector<std::string> options{};  // more compiler options; the usual ones are always given
  std::string preamble{};              // C++ text ahead of the file; mostly empty
};

// Machine code of one kernel, for one architecture.
struct CompiledKernel {
  std::string cubin;         // bytes
  std::string lowered_name;  // the kernel's mangled name in the cubin
  std::string log;           // what the compiler said
  int registers = 0;         // per thread, as ptxas printed it
  int smem_bytes = 0;        // static shared memory of a block, as ptxas printed it
  int stack_bytes = 0;       // per thread: arrays that are indexed at run time
  std::string warning{};     // a small spill, for whoever runs it; mostly empty
};

// Turns requests into machine code. Thread-safe.
class Compiler {
 public:
  virtual ~Compiler() = default;

  virtual Verdict available() const = 0;

  // Part of every cache key, e.g. "nvrtc 13.0". Empty where not available.
  virtual std::string version() const = 0;

  // Throws Unsupported where not available or the architecture is unknown to it, CompileError when
  // the source does not compile, spills more than a few registers (cuda/ptxas_log.h), or ptxas gave
  // up on wgmma or setmaxnreg.
  virtual CompiledKernel compile(const CompileRequest& request) const = 0;
};

// A kernel of ours that cannot be built as it should be. what() is one line with the name
// expression, the architecture and the first error; log() is all of it.
class CompileError : public Error {
 public:
  CompileError(const std::string& message, std::string log)
      : Error(message), log_(std::move(log)) {}
  const std::string& log() const { return log_; }

 private:
  std::string log_;
};

}  // namespace dfa::cuda
