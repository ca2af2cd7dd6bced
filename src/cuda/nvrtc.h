#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/compiler.h"
#include "cuda/sources.h"

namespace dfa::cuda {

struct NvrtcLibrary;

// NVIDIA's run-time compiler, loaded when first asked for; no GPU or driver is needed. Searched in
// this order: the file or folder that DFA_NVRTC names and, when that is set, nothing else;
// libnvrtc.so.13 and .12 where the system looks; the lib64 of CUDA_HOME and /usr/local/cuda;
// NVIDIA's packages beside the Python package dfa, and in the environment that VIRTUAL_ENV names.
class Nvrtc final : public Compiler {
 public:
  // With the sources that includes may name; default: those the library was built with. The spans'
  // memory must outlive the object.
  explicit Nvrtc(std::span<const SourceFile> sources = kernel_sources());
  Nvrtc(std::span<const SourceFile> sources, std::vector<std::string> library_names);
  ~Nvrtc() override;

  Verdict available() const override;
  std::string version() const override;
  std::string file() const;  // the library's path; empty where not available
  CompiledKernel compile(const CompileRequest& request) const override;

 private:
  const NvrtcLibrary& library() const;

  std::span<const SourceFile> sources_;
  std::optional<std::vector<std::string>> library_names_;  // none: where it is usually
  mutable std::once_flag once_;
  mutable std::unique_ptr<const NvrtcLibrary> library_;  // 100 MB, which compiled kernels need not
};

}  // namespace dfa::cuda
