#pragma once

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/compiler.h"
#include "cuda/request.h"
#include "cuda/store.h"
#include "gpu/fake_cuda.h"
#include "temp_dir.h"

namespace dfa::testing {

// Makes code that the fake driver takes.
class FakeCompiler final : public cuda::Compiler {
 public:
  explicit FakeCompiler(std::string warning = "", std::string version = "fake 1.0")
      : warning_(std::move(warning)), version_(std::move(version)) {}

  Verdict available() const override { return Verdict::yes(); }
  std::string version() const override { return version_; }
  cuda::CompiledKernel compile(const cuda::CompileRequest& request) const override {
    const std::string name = "_Z" + request.name_expression;
    return {.cubin = fake_cubin(request.arch, name),
            .lowered_name = name,
            .log = "",
            .warning = warning_};
  }

 private:
  std::string warning_, version_;
};

// A cache folder for this process and a package of kernels; it has no other compiler. To be made
// before the process asks for its kernels the first time: by fake_kernels().
class FakeKernels {
 public:
  explicit FakeKernels(std::filesystem::path folder) : folder_(std::move(folder)) {
    ::setenv("DFA_CACHE_DIR", folder_.c_str(), 1);
    ::setenv("DFA_NVRTC", "none-in-tests", 1);
    ::setenv("DFA_KERNELS", (folder_ / "package").c_str(), 1);
  }

  // From now on they can be loaded; each was compiled with the warning.
  void add(const std::vector<KernelLaunch>& launches, const std::string& warning = "") {
    cuda::KernelStore store({.cache = folder_}, std::make_shared<const FakeCompiler>(warning));
    for (const KernelLaunch& launch : launches) store.get(cuda::request_of(launch, "sm_90a"));
  }

  // The same in the package, by a compiler of this name.
  void add_to_package(const std::vector<KernelLaunch>& launches, const std::string& compiler) {
    cuda::KernelStore store({.cache = folder_ / "package"},
                            std::make_shared<const FakeCompiler>("", compiler));
    for (const KernelLaunch& launch : launches) store.get(cuda::request_of(launch, "sm_90a"));
  }

 private:
  const std::filesystem::path folder_;
};

// The process's: it looks for its kernels in one folder. Never destroyed, as they are not; the
// folder goes when the process ends.
inline FakeKernels& fake_kernels() {
  static const TempDir folder;
  static auto* const kernels = new FakeKernels(folder.path());
  return *kernels;
}

}  // namespace dfa::testing
