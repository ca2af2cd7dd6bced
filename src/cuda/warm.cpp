#include <charconv>
#include <mutex>
#include <set>
#include <thread>

#include "base/clock.h"
#include "cuda/cache.h"
#include "cuda/chosen_device.h"
#include "cuda/flash.h"
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
  if (const Verdict can = flash_supports(of, limits); !can) throw Unsupported(can.reason);
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

std::vector<KernelLaunch> launches_of(const Problem& problem, int capability, const Limits& limits,
                                      Algorithm algorithm) {
  return algorithm == Algorithm::standard ? legal_standard_launches(problem, capability)
                                          : default_launches(problem, limits);
}

WarmKernel warm(const WantedKernel& wanted) {
  WarmKernel kernel{.wanted = wanted};
  const double start = monotonic_s();
  try {
    const KernelLaunch launch{.name = wanted.name,
                              .source = wanted.source,
                              .entry = wanted.name_expression,
                              .preamble = wanted.preamble};
    const StoredKernel stored = kernel_store().get(request_of(launch, wanted.arch), wanted.cuda);
    kernel.origin = name_of(stored.origin);
    kernel.digest = stored.digest;
    kernel.kept = stored.kept;
    kernel.note = stored.note;
    kernel.warning = stored.code->warning;
    kernel.registers = stored.code->registers;
  } catch (const Error&) {
    kernel.error = std::current_exception();
  }
  kernel.time_s = monotonic_s() - start;
  return kernel;
}

}  // namespace

WantedKernels wanted_kernels(std::span<const Problem> problems, const WarmCard& card,
                             Algorithm algorithm) {
  const bool here = card.arch.empty();
  const std::string arch = here ? chosen_device().facts().arch() : card.arch;
  const int capability = capability_of(arch);
  Limits limits = here ? limits_of(chosen_device()) : gpu_limits(capability);
  if (card.sm_count > 0) limits.sm_count = card.sm_count;
  const int cuda = here ? gpu::driver_version() : 0;
  WantedKernels wanted;
  std::set<std::string> known;
  for (const Problem& problem : problems) {
    try {
      for (KernelLaunch& launch : launches_of(problem, capability, limits, algorithm)) {
        if (!known.insert(launch.preamble + launch.entry).second) continue;
        wanted.kernels.push_back({std::move(launch.name), std::move(launch.source),
                                  std::move(launch.entry), arch, cuda, std::move(launch.preamble)});
      }
    } catch (const Unsupported& error) {
      wanted.refused.emplace_back(to_line(problem), error.what());
    }
  }
  return wanted;
}

void warm_kernels(const std::vector<WantedKernel>& kernels, int at_once,
                  const std::function<void(const WarmKernel&)>& told) {
  std::mutex mutex;
  std::size_t next = 0;
  std::exception_ptr stopped;  // by what told() threw
  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (next < kernels.size() && stopped == nullptr) {
      const WantedKernel& wanted = kernels[next++];
      lock.unlock();
      const WarmKernel kernel = warm(wanted);
      lock.lock();
      try {
        if (stopped == nullptr) told(kernel);
      } catch (...) {
        stopped = std::current_exception();
      }
    }
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < at_once; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  if (stopped != nullptr) std::rethrow_exception(stopped);
}

CompilerInfo compiler_info() {
  const Nvrtc nvrtc(std::span<const SourceFile>{});
  const Verdict there = nvrtc.available();
  return there ? CompilerInfo{true, nvrtc.version() + ", " + nvrtc.file()}
               : CompilerInfo{false, there.reason};
}

}  // namespace dfa::cuda
