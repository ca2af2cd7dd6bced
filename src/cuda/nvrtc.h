#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/compiler.h"
#include "cuda/sources.h"

namespace dfa::cuda {

struct NvrtcLibrary;

// NVIDIA's run-time compiler, loaded when first asked for; no GPU or driver is needed. Searched in
// this order: the file or folder that DFA_NVRTC names and, when that is set, nothing else;
// libnvrtc.so.13 and .12 where the system looks; the lib64 of CUDA_HOME and /usr/local/cuda; the
// NVIDIA packages of the Python environment that VIRTUAL_ENV names.
class Nvrtc final : public Compiler {
 public:
  // With the sources that includes may name; default: those the library was built with. The spans'
  // memory must outlive the object.
  explicit Nvrtc(std::span<const SourceFile> sources = kernel_sources());
  Nvrtc(std::span<const SourceFile> sources, const std::vector<std::string>& library_names);
  ~Nvrtc() override;

  Verdict available() const override;
  std::string version() const override;
  std::string file() const;  // the library's path; empty where not available
  CompiledKernel compile(const CompileRequest& request) const override;

 private:
  std::unique_ptr<const NvrtcLibrary> library_;
  std::span<const SourceFile> sources_;
};

}  // namespace dfa::cuda
