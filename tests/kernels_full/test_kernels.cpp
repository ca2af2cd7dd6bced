#include "kernels_full/test_kernels.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/digest.h"
#include "base/file.h"

namespace dfa::cuda {
namespace {

namespace fs = std::filesystem;

// Of whoever passes judgement on a kernel: another one's are no answers.
std::string judge() {
  std::string code;
  for (const char* name : {"nvrtc.cpp", "ptxas_log.cpp"}) {
    code += code_of(read_file(fs::path(DFA_SOURCE_DIR) / "src/cuda" / name));
  }
  return digest(code);
}

fs::path folder() {
  static const std::string kJudge = judge();
  const char* named = std::getenv("DFA_TEST_KERNELS");
  const bool own = named != nullptr && *named != '\0';
  return fs::path(own ? named : DFA_BUILT_TEST_KERNELS) / kJudge;
}

}  // namespace

TestKernels::OfFile::OfFile(std::vector<SourceFile> all)
    : sources(std::move(all)),
      store({.cache = folder()}, std::make_shared<const Nvrtc>(sources), sources, {}) {}

TestKernels::TestKernels(std::span<const SourceFile> sources)
    : sources_(sources), nvrtc_(sources) {}

CompiledKernel TestKernels::compile(const CompileRequest& request) {
  std::unique_ptr<OfFile>& file = files_[request.source];
  if (file == nullptr) {
    file = std::make_unique<OfFile>(sources_of(request.source, sources_));
  }
  return *file->store.get(request).code;
}

// Bytes of registers that a text may spill before a warning tells it (cuda/nvrtc.cpp).
static constexpr int kUnsaid = 64;

// CUDA's sines have one for angles beyond 105615, which a user's text may name.
static int stack_of(const CompileRequest& request) {
  const bool sines = request.preamble.find("sinf(") != std::string::npos ||
                     request.preamble.find("cosf(") != std::string::npos;
  return sines ? 32 : 0;
}

CompiledKernel compile_without_stack(TestKernels& kernels, const CompileRequest& request,
                                     int spilled) {
  try {
    CompiledKernel kernel = kernels.compile(request);
    if (spilled <= kUnsaid) {
      EXPECT_EQ(kernel.warning, "") << request.name_expression;
    }
    EXPECT_LE(kernel.stack_bytes, stack_of(request) + spilled) << request.name_expression;
    EXPECT_FALSE(kernel.cubin.empty()) << request.name_expression;
    return kernel;
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
    return {};
  }
}

}  // namespace dfa::cuda
