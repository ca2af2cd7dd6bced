// The clock that multiprocessors run at under load, counted, beside the one that NVML tells: a
// thread on a multiprocessor that the load leaves free notes its cycles and the time every few
// milliseconds. Prints a line for every 50 ms: no load first, then calls of a problem back to back.
//
// effective_clock [--problem LINE] [--seconds 3]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "cuda/chosen_device.h"
#include "cuda/nvrtc.h"
#include "gpu/buffer.h"
#include "gpu/kernel.h"
#include "measure/problem_buffers.h"
#include "measure/telemetry.h"
#include "sensors/system_clock.h"

namespace dfa {
namespace {

constexpr std::string_view kSource = R"(
struct CountCycles { unsigned long long* out; unsigned long long period_ns; int samples; };
__device__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}
__global__ void count_cycles(const __grid_constant__ CountCycles a) {
  unsigned long long next = now_ns();
  for (int i = 0; i < a.samples; ++i, next += a.period_ns) {
    unsigned long long ns;
    do ns = now_ns(); while (ns < next);
    unsigned long long cycles;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
    a.out[2 * i] = ns;
    a.out[2 * i + 1] = cycles;
  }
}
)";

struct CountCycles {
  void* out;
  unsigned long long period_ns;
  int samples;
};

constexpr double kPeriodS = 5e-3, kIdleS = 0.3, kLineS = 0.05;

struct Told {
  double at_s, clock_mhz, power_w, tflops;  // NaN: not told
};

double number(const sensors::MeterSet& meters) {
  return measure::value_of(meters).value_or(std::numeric_limits<double>::quiet_NaN());
}

// MHz counted from one line to the next.
std::vector<double> counted_mhz(const std::vector<unsigned long long>& notes) {
  constexpr std::size_t kStep = static_cast<std::size_t>(kLineS / kPeriodS + 0.5);
  std::vector<double> mhz;
  for (std::size_t i = kStep; 2 * i < notes.size(); i += kStep) {
    const auto ns = static_cast<double>(notes[2 * i] - notes[2 * (i - kStep)]);
    const auto cycles = static_cast<double>(notes[2 * i + 1] - notes[2 * (i - kStep) + 1]);
    mhz.push_back(1e3 * cycles / ns);
  }
  return mhz;
}

void run(const std::string& line, double seconds) {
  const gpu::Device& device = cuda::chosen_device();
  const GpuIdentity gpu = find_backend("cuda").device().identity();
  measure::ProblemBuffers load(parse_problem(line), "cuda", 1);
  const measure::PassPlans plans = measure::prepare(load.problem(), {.backend = "cuda"});
  if (plans.sms() == 0) throw Unsupported("no kernel of '" + line + "' takes a budget");
  load.limit_sms(plans.sms() - 1);
  load.run(plans, 3);
  sensors::SystemClock clock;
  const measure::Telemetry telemetry = measure::open_telemetry(gpu, clock);

  const cuda::SourceFile source{"count_cycles.cuh", kSource};
  const cuda::CompiledKernel code = cuda::Nvrtc({&source, 1})
                                        .compile({.source = "count_cycles.cuh",
                                                  .name_expression = "count_cycles",
                                                  .arch = device.facts().arch()});
  const gpu::Kernel kernel = gpu::Library(device, code.cubin).kernel(code.lowered_name);
  const int samples = static_cast<int>((kIdleS + seconds) / kPeriodS) + 1;
  const gpu::Stream stream(device);
  const gpu::Buffer memory(device, 16 * static_cast<std::size_t>(samples));
  const double begin = clock.now_s();
  gpu::launch(kernel, {}, stream,
              CountCycles{memory.data(), static_cast<unsigned long long>(1e9 * kPeriodS), samples});

  std::vector<Told> told;
  double flops = 0, from = 0, next = kLineS;
  for (double at = 0; at < kIdleS + seconds; at = clock.now_s() - begin) {
    if (at >= kIdleS) {
      load.run(plans);
      flops += plans.flops();
    }
    if (at < next) continue;
    told.push_back(
        {at, 1e-6 * number(telemetry.clock), number(telemetry.power), 1e-12 * flops / (at - from)});
    flops = 0;
    from = at;
    next += kLineS;
  }
  std::vector<unsigned long long> notes(2 * static_cast<std::size_t>(samples));
  gpu::copy_out(stream, notes.data(), memory.data(), 8 * notes.size());
  stream.synchronize();

  const std::vector<double> counted = counted_mhz(notes);
  fmt::print("{} on {} of {} multiprocessors, {}\n", to_line(load.problem()), plans.sms() - 1,
             plans.sms(), utc_now());
  fmt::print("     s  counted MHz  NVML MHz      W  TFLOP/s\n");
  for (std::size_t i = 0; i < std::min(counted.size(), told.size()); ++i) {
    fmt::print("{:6.2f} {:12.0f} {:9.0f} {:6.0f} {:8.0f}\n", told[i].at_s, counted[i],
               told[i].clock_mhz, told[i].power_w, told[i].tflops);
  }
}

}  // namespace
}  // namespace dfa

int main(int argc, char** argv) {
  std::string problem = "fwd bf16 b4 h16 s4096 d128";
  double seconds = 3;
  CLI::App app("The clock that multiprocessors run at, counted, beside NVML's");
  app.add_option("--problem", problem);
  app.add_option("--seconds", seconds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    dfa::run(problem, seconds);
  } catch (const dfa::Error& error) {
    fmt::print(stderr, "effective_clock: {}\n", error.what());
    return 3;
  }
}
