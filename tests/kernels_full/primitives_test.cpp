// Every probe of a primitive, for every architecture the primitive claims.
#include "kernels_full/architectures.h"
#include "primitives/probes.h"

namespace dfa::cuda {
namespace {

using PrimitiveKernels = OnArchitectures;

TEST_P(PrimitiveKernels, CompileWithoutSpillsWhereTheyClaimTo) {
  TestKernels kernels(probe_sources());
  DFA_NEEDS_NVRTC(kernels);
  for (const Probe& probe : probes()) {
    if (probe.least > GetParam().number) continue;
    // Hopper's are what it adds to the machine before.
    if (!kEveryKernel && GetParam().number == 90 && probe.least < 90) continue;
    compile_without_stack(kernels, request_of(probe, GetParam().name));
  }
}

DFA_ON_ARCHITECTURES(PrimitiveKernels);

}  // namespace
}  // namespace dfa::cuda
