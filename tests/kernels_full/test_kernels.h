#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/compiler.h"
#include "cuda/nvrtc.h"
#include "cuda/sources.h"
#include "cuda/store.h"
#include "dfa/error.h"

namespace dfa::cuda {

// Kernels as the compiler makes them of their own sources alone: a file, and what it includes.
//
// A kernel that several tests ask for is compiled once, and again when its sources, its options,
// the compiler or what reads the compiler's log (nvrtc.cpp, ptxas_log.cpp) have changed: they lie
// in a store of the build's, or of the folder that DFA_TEST_KERNELS names. What failed is not kept.
class TestKernels {
 public:
  explicit TestKernels(std::span<const SourceFile> sources = kernel_sources());

  Verdict available() const { return nvrtc_.available(); }
  CompiledKernel compile(const CompileRequest& request);

 private:
  struct OfFile {
    explicit OfFile(std::vector<SourceFile> all);

    std::vector<SourceFile> sources;
    KernelStore store;
  };

  std::span<const SourceFile> sources_;
  Nvrtc nvrtc_;
  std::map<std::string, std::unique_ptr<OfFile>> files_;  // by CompileRequest::source
};

// Skips the test that calls it where there is no compiler.
#define DFA_NEEDS_NVRTC(kernels) \
  if (!(kernels).available()) GTEST_SKIP() << (kernels).available().reason

// Large spills are errors of the compiler, small ones here. `spilled`: bytes of stack that are not;
// above 64 the compiler's warning is none either.
CompiledKernel compile_without_stack(TestKernels& kernels, const CompileRequest& request,
                                     int spilled = 0);

}  // namespace dfa::cuda
