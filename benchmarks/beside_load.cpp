// A forward beside a foreign load: a kernel that holds some multiprocessors to itself, as others of
// a process do, while calls of a problem run on the rest. Items dealt out beforehand against items
// that blocks take from a counter (ForwardConfig::dynamic, docs/design/0015-hopper-forward.md), in
// turns. Prints a line for every problem and number of held multiprocessors.
//
// beside_load [--problem LINE]... [--held N]... [--rounds 3]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "attention/registry.h"
#include "bench/statistics.h"
#include "bench/workload.h"
#include "cuda/chosen_device.h"
#include "cuda/nvrtc.h"
#include "gpu/kernel.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

constexpr std::string_view kSource = R"(
struct Hold { unsigned long long ns; };
__device__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}
__global__ void hold(const __grid_constant__ Hold a) {
  const unsigned long long end = now_ns() + a.ns;
  while (now_ns() < end) __nanosleep(1000);
}
)";
struct Hold {
  unsigned long long ns;
};

constexpr int kHeldBytes = 200 << 10;  // of shared memory: nothing else finds room beside it
constexpr double kHeldS = 0.15, kCallsS = 0.05;

// Holds so many multiprocessors for a while, from now on.
class Holder {
 public:
  explicit Holder(const gpu::Device& device) : stream_(device), library_(library(device)) {
    kernel_ = library_.kernel(name_);
    kernel_.allow_smem(kHeldBytes);
  }

  void hold(int multiprocessors) {
    stream_.synchronize();
    if (multiprocessors == 0) return;
    const gpu::Launch shape{
        .grid = {static_cast<unsigned>(multiprocessors)}, .block = {32}, .smem_bytes = kHeldBytes};
    gpu::launch(kernel_, shape, stream_, Hold{static_cast<unsigned long long>(1e9 * kHeldS)});
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // they have begun
  }

 private:
  gpu::Library library(const gpu::Device& device) {
    const cuda::SourceFile source{"hold.cuh", kSource};
    const cuda::CompiledKernel code =
        cuda::Nvrtc({&source, 1})
            .compile(
                {.source = "hold.cuh", .name_expression = "hold", .arch = device.facts().arch()});
    name_ = code.lowered_name;
    return gpu::Library(device, code.cubin);
  }

  gpu::Stream stream_;
  std::string name_;
  gpu::Library library_;
  gpu::Kernel kernel_;
};

bench::Prepared taking(const Problem& problem, const bench::Prepared& dealt) {
  ForwardConfig config = parse_config(dealt.forward->config, ForwardConfig{});
  config.dynamic = true;
  return bench::prepare(problem, {.backend = "cuda", .config = to_text(config)});
}

void compare(const std::string& line, const std::vector<int>& held, int rounds) {
  const Problem problem = parse_problem(line);
  bench::Workload workload(problem, "cuda", 1);
  const bench::Prepared dealt = bench::prepare(problem, {.backend = "cuda"});
  const std::array ways{dealt, taking(problem, dealt)};
  Holder holder(cuda::chosen_device());
  for (const bench::Prepared& way : ways) {
    if (!workload.check(way, {.max_flops = 1e9, .seed = 1}).ok) {
      throw Error("'" + line + "' is wrong with " + way.forward->config);
    }
  }
  const double call = workload.time_s(dealt, 3) / 3;
  const int calls = std::max(1, static_cast<int>(kCallsS / call));
  for (const int multiprocessors : held) {
    std::array<std::vector<double>, 2> us;
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; i < 2; ++i) {
        const auto which = static_cast<std::size_t>((round + i) % 2);
        holder.hold(multiprocessors);
        us[which].push_back(1e6 * workload.time_s(ways[which], calls) / calls);
      }
    }
    const double before = bench::summarize(us[0]).median, after = bench::summarize(us[1]).median;
    fmt::print("{:45s} {:4d} {:12.1f} {:10.1f} {:8.3f}\n", line, multiprocessors, before, after,
               before / after);
  }
}

}  // namespace
}  // namespace dfa

int main(int argc, char** argv) {
  std::vector<std::string> problems{
      "fwd bf16 causal b4 h16 s4096 d128", "fwd bf16 b4 h16 s4096 d128",
      "fwd bf16 causal b16 h32 s1024 d64", "fwd bf16 b4 h8 s4096 d256"};
  std::vector<int> held{0, 1, 4, 16};
  int rounds = 3;
  CLI::App app("A forward beside a foreign load, its items dealt out or taken");
  app.add_option("--problem", problems);
  app.add_option("--held", held, "multiprocessors");
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    fmt::print("{:45s} held  dealt us a call, taken us  ratio\n", "problem");
    for (const std::string& problem : problems) dfa::compare(problem, held, rounds);
  } catch (const dfa::Error& error) {
    fmt::print(stderr, "beside_load: {}\n", error.what());
    return 3;
  }
}
