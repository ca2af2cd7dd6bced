// Attention on one core against that core's own multiply-add peak, measured in the same run.
//   build/release/benchmarks/attention_benchmark --benchmark_filter='bf16/forward'
// Names: algorithm/isa/dtype/pass/mask/d/L. Counters: GFLOP/s by the convention of spec/flops.h,
// percent of peak, and workspace bytes per N·d element.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "base/aligned.h"
#include "base/fill.h"
#include "dfa/attention.h"
#include "spec/config_names.h"
#include "spec/target.h"

namespace {

using namespace dfa;

struct Case {
  Algorithm algorithm;
  std::string isa;  // portable, avx2, avx512, amx
  DType dtype;
  bool backward;
  bool causal;
  int d;
  int length;
};

std::string line_of(const Case& c, Pass pass) {
  return std::string(pass == Pass::forward ? "fwd " : "fwdbwd ") + name_of(c.dtype) +
         (c.causal ? " causal" : "") + " b1 h1 s" + std::to_string(c.length) + " d" +
         std::to_string(c.d);
}

// The peak of one thread at this element type, measured once.
double peak(DType dtype) {
  static const Ceilings ceilings = find_backend("cpu").diagnostics().measure_ceilings(1, 0.6);
  return dtype == DType::bf16 ? ceilings.bf16_flops
                              : (dtype == DType::fp16 ? ceilings.fp16_flops : ceilings.fp32_flops);
}

void run(benchmark::State& state, const Case& c) {
  ::setenv("DFA_ISA", c.isa.c_str(), 1);
  const Problem p = parse_problem(line_of(c, c.backward ? Pass::forward_backward : Pass::forward));
  const Plan plan = dfa::plan(p, {.backend = "cpu", .algorithm = c.algorithm, .threads = 1});
  const std::int64_t count = p.sq * p.d;
  const auto bytes = static_cast<std::size_t>(count * bytes_of(p.dtype));
  std::vector<AlignedBuffer> t;
  for (int i = 0; i < 8; ++i) {
    t.emplace_back(bytes);
    fill_normal(t.back().data(), p.dtype, count, static_cast<std::uint64_t>(i));
  }
  AlignedBuffer lse(static_cast<std::size_t>(p.sq) * sizeof(float));
  AlignedBuffer workspace(plan.workspace_bytes);
  const ForwardArgs forward{t[0].data(), t[1].data(),     t[2].data(),
                            t[3].data(), lse.as<float>(), workspace.data()};
  const BackwardArgs backward{t[0].data(), t[1].data(), t[2].data(), t[3].data(), lse.as<float>(),
                              t[4].data(), t[5].data(), t[6].data(), t[7].data(), workspace.data()};
  dfa::forward(plan, forward);
  for (auto _ : state) {
    if (c.backward) {
      dfa::backward(plan, backward);
    } else {
      dfa::forward(plan, forward);
    }
    benchmark::ClobberMemory();
  }
  const double flops = c.backward ? plan.backward_flops : plan.forward_flops;
  const double done = flops * static_cast<double>(state.iterations());
  state.counters["GFLOPs"] = benchmark::Counter(done * 1e-9, benchmark::Counter::kIsRate);
  state.counters["peak_pct"] =
      benchmark::Counter(100 * done / peak(c.dtype), benchmark::Counter::kIsRate);
  state.counters["workspace_bytes"] = static_cast<double>(plan.workspace_bytes);
  state.counters["workspace_per_Nd"] =
      static_cast<double>(plan.workspace_bytes) / static_cast<double>(count);
}

// The levels that DFA_ISA accepts here.
std::vector<std::string> available_isas() {
  std::vector<std::string> isas;
  for (const Target target : kTargets) {
    const std::string isa = std::string(name_of(target)).substr(4);
    ::setenv("DFA_ISA", isa.c_str(), 1);
    if (find_backend("cpu").available()) isas.push_back(isa);
  }
  return isas;
}

void add(const Case& c) {
  const std::string name = std::string(c.algorithm == Algorithm::flash ? "flash" : "standard") +
                           "/" + c.isa + "/" + name_of(c.dtype) +
                           (c.backward ? "/backward" : "/forward") +
                           (c.causal ? "/causal" : "/full") + "/d" + std::to_string(c.d) + "/L" +
                           std::to_string(c.length);
  benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) {
    run(state, c);
  })->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  peak(DType::fp32);  // before any case lowers DFA_ISA
  for (const std::string& isa : available_isas()) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      if (isa == "amx" && dtype != DType::bf16) continue;
      for (const bool backward : {false, true}) {
        for (const int d : {64, 128}) {
          for (const int length : {1024, 2048, 4096}) {
            for (const bool causal : {false, true}) {
              add({Algorithm::flash, isa, dtype, backward, causal, d, length});
              add({Algorithm::standard, isa, dtype, backward, causal, d, length});
            }
          }
        }
      }
    }
    add({Algorithm::flash, isa, DType::bf16, false, false, 64, 65536});
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
