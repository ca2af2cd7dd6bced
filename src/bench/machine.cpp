#include "bench/machine.h"

#include <fstream>

#include "base/env.h"
#include "bench/source_state.h"
#include "dfa/attention.h"
#include "dfa/version.h"
#include "sensors/host.h"
#include "spec/config_names.h"
#include "spec/config_text.h"

namespace dfa::bench {
namespace {

std::string compiler() {
#if defined(__clang__)
  return std::string("clang ") + __clang_version__;
#else
  return std::string("g++ ") + __VERSION__;
#endif
}

// The source state that a result names is that of the build; kernels may be another's.
std::string toolchain() {
  const std::string sources = env("DFA_KERNEL_SOURCES");
  return std::string("dfa ") + kVersion + ", " + compiler() + ", " + kBuildType +
         (sources.empty() ? "" : ", GPU kernels with files of '" + sources + "'");
}

// The highest instruction set: that of the plan for the type with the most special instructions.
std::string isa() {
  const Plan plan = dfa::plan(parse_problem("fwd bf16 b1 h1 s64 d64"),
                              {.backend = "cpu", .algorithm = Algorithm::flash});
  return name_of(parse_config(plan.config, ForwardConfig{}).target);
}

}  // namespace

MachineFacts describe_machine(int threads) {
  const sensors::HostFacts host = sensors::read_host_facts();
  return {.host = host.hostname,
          .cpu = host.cpu_model,
          .isa = isa(),
          .threads = threads == 0 ? host.threads : threads,
          .gpu = std::nullopt,
          .toolchain = toolchain(),
          .os = host.os,
          .memory_bytes = host.memory_bytes,
          .l2_bytes = host.l2_bytes,
          .l3_bytes = host.l3_bytes,
          .virtual_machine = host.virtual_machine};
}

GitState describe_source() {
  const std::string sha = kGitSha;
  if (sha.empty()) return {};
  return {.sha = sha, .dirty = kGitDirty};
}

std::vector<std::string> process_arguments() {
  std::vector<std::string> arguments;
  std::ifstream stream("/proc/self/cmdline", std::ios::binary);
  for (std::string argument; std::getline(stream, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::string default_backend() {
  std::string reasons;
  for (const BackendInfo& info : backends()) {
    if (info.name == "reference") continue;
    if (info.available) return info.name;
    reasons += "; " + info.name + ": " + info.available.reason;
  }
  throw Unsupported("no backend works here" + reasons);
}

}  // namespace dfa::bench
