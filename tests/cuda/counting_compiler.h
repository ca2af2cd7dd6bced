#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "cuda/compiler.h"

namespace dfa::testing {

// Compiles nothing, but in a way that can be told apart, and counts.
class CountingCompiler final : public cuda::Compiler {
 public:
  Verdict available() const override { return verdict; }
  std::string version() const override { return verdict ? text : ""; }

  cuda::CompiledKernel compile(const cuda::CompileRequest& request) const override {
    if (!verdict) throw Unsupported(verdict.reason);
    ++count;
    if (work) work();
    return {.cubin = "\177ELF of " + request.name_expression + std::string("\0\n\xff", 3),
            .lowered_name = "_Z" + request.name_expression,
            .log = "as always\n",
            .registers = 168,
            .smem_bytes = 1024,
            .stack_bytes = 0,
            .warning = warning};
  }

  Verdict verdict = Verdict::yes();
  std::string text = "counter 1.0";
  std::string warning;  // of every kernel
  std::function<void()> work;
  mutable std::atomic<int> count = 0;
};

}  // namespace dfa::testing
