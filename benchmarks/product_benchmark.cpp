// The fp32 matrix products of standard attention alone, on one core, against the multiply-add peak
// of the same instruction set, measured in the same run.
//   build/release/benchmarks/product_benchmark
// Names: product/isa/d. Counters: GFLOP/s and percent of peak.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/enum_table.h"
#include "base/fill.h"
#include "cpu/ceilings.h"
#include "cpu/cpuid.h"
#include "cpu/standard_operands.h"
#include "spec/config_names.h"

namespace {

using namespace dfa;
using namespace dfa::cpu;

constexpr int kRows = 64;         // of a task
constexpr int kKeys = 1024;       // of a head
constexpr int kRow = kKeys + 16;  // floats from one row of a matrix to the next

enum class Kind { scores, values, transposed };

constexpr auto kKinds = enum_table<Kind>({
    {Kind::scores, "q_k"},        // S = q k^T, dP = do v^T
    {Kind::values, "p_v"},        // o = P v, dq = dS k
    {Kind::transposed, "pt_do"},  // dv = P^T do, dk = dS^T q
});

struct Case {
  Kind kind;
  Target target;
  int d;
};

AlignedBuffer normal_floats(std::int64_t count, std::uint64_t seed) {
  AlignedBuffer buffer(static_cast<std::size_t>(count) * sizeof(float));
  fill_normal(buffer.data(), DType::fp32, count, seed);
  return buffer;
}

// One block of rows against every key, as a task of standard attention does it.
void multiply(const Case& c, const PackedTensor& right, float* matrix, float* rows) {
  const MatrixKernels& kernels = matrix_of(c.target);
  for (std::int64_t block = 0; block < right.blocks(); ++block) {
    const RightOperand b = right.operand(0, block);
    const std::int64_t at = block * PackedTensor::kBlock;
    if (c.kind == Kind::scores) {
      kernels.product({rows, c.d, 1}, b, {matrix + at, kRow, false}, kRows, b.cols, c.d);
    } else if (c.kind == Kind::values) {
      kernels.product({matrix + at, kRow, 1}, b, {rows, c.d, block > 0}, kRows, c.d, b.steps);
    } else {
      kernels.product({matrix + at * kRow, 1, kRow}, b, {rows, c.d, block > 0}, kRows, c.d,
                      b.steps);
    }
  }
}

double peak(Target target) {
  static double peaks[std::size(kTargets)] = {};
  double& flops = peaks[static_cast<int>(target)];
  if (flops == 0) flops = measure_ceilings(target, 1, 0.6).fp32_flops;
  return flops;
}

void run(benchmark::State& state, const Case& c) {
  const auto kind =
      c.kind == Kind::scores ? PackedTensor::Kind::columns : PackedTensor::Kind::steps;
  Arena sizes(nullptr);
  PackedTensor(matrix_of(c.target), kind, 1, kKeys, c.d, sizes);
  AlignedBuffer packed(sizes.used());
  Arena carver(packed.data());
  PackedTensor right(matrix_of(c.target), kind, 1, kKeys, c.d, carver);
  AlignedBuffer keys = normal_floats(kKeys * c.d, 1), rows = normal_floats(kRows * c.d, 2);
  AlignedBuffer matrix = normal_floats(kKeys * kRow, 3);
  for (std::int64_t block = 0; block < right.blocks(); ++block) {
    right.pack(0, block, DType::fp32, keys.as<std::byte>(), c.d);
  }
  for (auto _ : state) {
    multiply(c, right, matrix.as<float>(), rows.as<float>());
    benchmark::ClobberMemory();
  }
  const double done = 2.0 * kRows * kKeys * c.d * static_cast<double>(state.iterations());
  state.counters["GFLOPs"] = benchmark::Counter(done * 1e-9, benchmark::Counter::kIsRate);
  state.counters["peak_pct"] =
      benchmark::Counter(100 * done / peak(c.target), benchmark::Counter::kIsRate);
}

}  // namespace

int main(int argc, char** argv) {
  for (const Target target : kTargets) {
    if (target == Target::cpu_amx || !has(target)) continue;  // AMX multiplies fp32 by AVX-512
    for (const Kind kind : {Kind::scores, Kind::values, Kind::transposed}) {
      for (const int d : {64, 128}) {
        const std::string name = std::string(kKinds.name(kind)) + "/" +
                                 std::string(dfa::name_of(target)).substr(4) + "/d" +
                                 std::to_string(d);
        const Case c{kind, target, d};
        benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) {
          run(state, c);
        })->Unit(benchmark::kMicrosecond);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
