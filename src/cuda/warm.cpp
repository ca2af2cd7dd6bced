#include <charconv>

#include "base/clock.h"
#include "cuda/cache.h"
#include "cuda/chosen_device.h"
#include "cuda/nvrtc.h"
#include "cuda/request.h"
#include "cuda/standard_steps.h"
#include "cuda/store.h"
#include "kernels/launch.h"
#include "plan/pack_gqa.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "spec/limits.h"
#include "spec/passes.h"

namespace dfa::cuda {
namespace {

// 90 of "sm_90a".
int capability_of(const std::string& arch) {
  int number = 0;
  const std::string prefix = "sm_";
  if (arch.rfind(prefix, 0) == 0) {
    std::from_chars(arch.data() + prefix.size(), arch.data() + arch.size(), number);
  }
  if (number < 10) {
    throw InvalidArgument("architecture '" + arch + "'; accepted: sm_80, sm_90a and the like");
  }
  return number;
}

// The kernels of a pass with the tiles that a plan takes where nothing is asked for.
template <class Config>
void add(std::vector<KernelLaunch>& launches, const Problem& problem, const Config& config,
         const Limits& limits,
         std::vector<KernelLaunch> (*launches_of)(const Problem&, const Config&)) {
  if (const Verdict legal = validate_config(config, problem, limits); !legal)
    throw Unsupported(legal.reason);
  for (KernelLaunch& launch : launches_of(problem, config)) launches.push_back(std::move(launch));
}

std::vector<KernelLaunch> default_launches(const Problem& of, const Limits& limits) {
  const Problem problem = with_pack_gqa(of);
  std::vector<KernelLaunch> launches;
  if (has_forward(problem)) {
    add(launches, problem, select_forward(problem, limits), limits, &forward_launches);
  }
  if (has_backward(problem)) {
    add(launches, problem, select_backward(problem, limits), limits, &backward_launches);
  }
  return launches;
}

std::vector<KernelLaunch> legal_standard_launches(const Problem& problem, int capability) {
  if (const Verdict can = check_standard(problem, capability); !can) throw Unsupported(can.reason);
  return standard_launches(problem);
}

WarmKernel warm(const KernelLaunch& launch, const std::string& arch) {
  const double start = monotonic_s();
  const StoredKernel stored = kernel_store().get(request_of(launch, arch));
  return {.name = launch.name,
          .name_expression = launch.entry,
          .origin = name_of(stored.origin),
          .kept = stored.kept,
          .note = stored.note,
          .warning = stored.code->warning,
          .registers = stored.code->registers,
          .time_s = monotonic_s() - start};
}

}  // namespace

std::vector<WarmKernel> warm_cache(const Problem& problem, const std::string& arch,
                                   Algorithm algorithm) {
  const std::string chosen = arch.empty() ? chosen_device().facts().arch() : arch;
  std::vector<WarmKernel> kernels;
  const int capability = capability_of(chosen);
  for (const KernelLaunch& launch : algorithm == Algorithm::standard
                                        ? legal_standard_launches(problem, capability)
                                        : default_launches(problem, gpu_limits(capability))) {
    kernels.push_back(warm(launch, chosen));
  }
  return kernels;
}

CompilerInfo compiler_info() {
  const Nvrtc nvrtc(std::span<const SourceFile>{});
  const Verdict there = nvrtc.available();
  return there ? CompilerInfo{true, nvrtc.version() + ", " + nvrtc.file()}
               : CompilerInfo{false, there.reason};
}

}  // namespace dfa::cuda
