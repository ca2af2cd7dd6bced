// Every probe of a primitive, for every architecture the primitive claims.
#include <gtest/gtest.h>

#include "cuda/nvrtc.h"
#include "primitives/probes.h"

namespace dfa::cuda {
namespace {

struct Architecture {
  int number;
  const char* name;
};

class PrimitiveKernels : public testing::TestWithParam<Architecture> {};

TEST_P(PrimitiveKernels, CompileWithoutSpillsWhereTheyClaimTo) {
  const Nvrtc nvrtc(probe_sources());
  if (!nvrtc.available()) GTEST_SKIP() << nvrtc.available().reason;
  for (const Probe& probe : probes()) {
    if (probe.least > GetParam().number) continue;
    try {
      const CompiledKernel kernel = nvrtc.compile(request_of(probe, GetParam().name));
      EXPECT_EQ(kernel.stack_bytes, 0) << probe.entry;
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, PrimitiveKernels,
                         testing::Values(Architecture{75, "sm_75"}, Architecture{80, "sm_80"},
                                         Architecture{86, "sm_86"}, Architecture{89, "sm_89"},
                                         Architecture{90, "sm_90a"}),
                         [](const auto& architecture) {
                           return std::string(architecture.param.name);
                         });

}  // namespace
}  // namespace dfa::cuda
