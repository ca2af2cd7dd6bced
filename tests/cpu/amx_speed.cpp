// Speed of the AMX engine on one thread, without the driver: rates of the parts a design depends
// on, then TFLOP/s forward and backward. Prints one table; see docs/design/0005-amx.md.
//   amx_speed [parts] [forward] [backward] [blocks]
#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>

#include "cpu/amx_engine.h"
#include "cpu/amx_head.h"
#include "cpu/cpuid.h"

namespace dfa::cpu {
namespace {

using amx::HardwareTiles;

// Shortest of several runs that take about 20 ms each, in seconds a call.
double seconds(const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  const auto time = [&](int calls) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    return std::chrono::duration<double>(Clock::now() - start).count() / calls;
  };
  const int calls = std::max(1, static_cast<int>(0.02 / time(1)));
  double best = time(calls);
  for (int i = 0; i < 7; ++i) best = std::min(best, time(calls));
  return best;
}

// From a chain of multiplications, three cycles each.
[[gnu::noinline]] double clock_hz() {
  constexpr int kSteps = 10000;
  return 30.0 * kSteps / seconds([] {
           long n = 3;
           for (int i = 0; i < kSteps; ++i) {
             asm volatile(
                 "imul %0, %0\n imul %0, %0\n imul %0, %0\n imul %0, %0\n imul %0, %0\n"
                 "imul %0, %0\n imul %0, %0\n imul %0, %0\n imul %0, %0\n imul %0, %0"
                 : "+r"(n));
           }
         });
}

void part(const char* name, double hz, double count, const std::function<void()>& call) {
  const double time = seconds(call);
  std::printf("%-44s %8.3f G/s %8.2f cycles\n", name, count / time * 1e-9, time * hz / count);
}

void parts() {
  const double hz = clock_hz();
  std::printf("clock %.2f GHz\n", hz * 1e-9);
  const Buffer memory = buffer(1 << 16);
  std::memset(memory.get(), 0, 1 << 16);
  std::byte* m = memory.get();
  HardwareTiles::configure();
  constexpr int kTimes = 1000;
  part("dots, no loads (1 dot = 16384 flop)", hz, 4 * kTimes, [] {
    for (int i = 0; i < kTimes; ++i) {
      HardwareTiles::dot<0, 4, 6>();
      HardwareTiles::dot<1, 4, 7>();
      HardwareTiles::dot<2, 5, 6>();
      HardwareTiles::dot<3, 5, 7>();
    }
  });
  amx::Idle idle;
  amx::Sums<HardwareTiles> sums;
  part("products of 32x32x32, no vectors", hz, kTimes, [&] {
    for (int i = 0; i < kTimes; ++i) {
      sums.add<amx::Reuse::near>(m + i % 4 * 2048, m + 8192 + i % 4 * 2048, idle);
    }
  });
  part("tile loads", hz, 2 * kTimes, [&] {
    for (int i = 0; i < kTimes; ++i) {
      HardwareTiles::load<4>(m);
      HardwareTiles::load<5>(m + 1024);
    }
  });
  part("tile stores", hz, 4 * kTimes, [&] {
    for (int i = 0; i < kTimes; ++i) {
      std::byte* to = m + i % 4 * 4096;
      HardwareTiles::store<0>(to);
      HardwareTiles::store<1>(to + 1024);
      HardwareTiles::store<2>(to + 2048);
      HardwareTiles::store<3>(to + 3072);
    }
  });
  auto* floats = reinterpret_cast<float*>(m);
  const amx::SoftmaxSlice<amx::BoundedWeight> softmax{
      m, m + 32768, floats + 12288, {{_mm512_set1_ps(0.1f)}}, nullptr, 0};
  part("softmax slices (4 vectors)", hz, kTimes, [&] {
    for (int i = 0; i < kTimes; ++i) softmax(i & 63);
  });
  const amx::GradientSlice gradient{m,         m + 16384, m + 32768,
                                    m + 40960, m + 49152, floats + 16000,
                                    0,         1 << 20,   _mm512_set1_ps(0.1f)};
  part("gradient slices (4 vectors)", hz, kTimes, [&] {
    for (int i = 0; i < kTimes; ++i) gradient(i & 31);
  });
  HardwareTiles::release();
}

std::vector<std::uint16_t> normal(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (auto& x : values)
    x = static_cast<std::uint16_t>(__builtin_bit_cast(unsigned, distribution(random)) >> 16);
  return values;
}

HeadTensors tensors(std::int64_t length, int d) {
  HeadTensors t;
  t.q = normal(length * d, 1);
  t.k = normal(length * d, 2);
  t.v = normal(length * d, 3);
  t.d_o = normal(length * d, 4);
  t.o = t.dq = t.dk = t.dv = t.q;
  t.lse.resize(static_cast<std::size_t>(length));
  return t;
}

struct Row {
  std::int64_t length;
  int d;
  bool causal;
  int block_q, block_k;
  bool long_tiles = false;  // forward: one tile of all rows, as the driver has it for one thread
};

HeadShape shape_of(const Row& row) {
  return {row.length,
          row.length,
          row.d,
          row.d,
          row.causal ? kCausal : kFull,
          1 / std::sqrt(static_cast<float>(row.d)),
          row.d,
          row.d,
          row.d,
          row.d};
}

// Packing alone, cycles for 32 keys; and a forward over 32 keys, cycles for 32 queries: what a
// group of rows costs beside its steps, and one square.
void ends() {
  const double hz = clock_hz();
  for (const int d : {64, 128}) {
    const std::int64_t length = 1024;
    const int block_k = d <= 64 ? 128 : 64;
    HeadTensors t = tensors(length, d);
    HeadShape shape = shape_of({length, d, false, 32, block_k});
    const ForwardConfig config{Target::cpu_amx, DType::bf16, d, d, 32, block_k};
    const Buffer packed = buffer(amx_engine().packed_kv_bytes(config, shape));
    const PackKv all{t.k.data(), t.v.data(), packed.get(), 0, length};
    part(d == 64 ? "packing 32 keys, d 64" : "packing 32 keys, d 128", hz, length / 32,
         [&] { amx_engine().pack_kv(config, shape, all); });
    shape.sk = 32;
    const HeadForward forward(amx_engine(), config, shape);
    part(d == 64 ? "32 queries, 32 keys, d 64" : "32 queries, 32 keys, d 128", hz, length / 32,
         [&] { forward.run(t, length); });
  }
}

void measure(const Row& row, bool gradients) {
  const HeadShape shape = shape_of(row);
  const ForwardConfig fwd{Target::cpu_amx, DType::bf16, row.d, row.d, row.block_q, row.block_k};
  const BackwardConfig bwd{Target::cpu_amx, DType::bf16, row.d, row.d, row.block_q, row.block_k};
  HeadTensors t = tensors(row.length, row.d);
  const HeadForward forward(amx_engine(), fwd, shape);
  const HeadBackward backward(amx_engine(), bwd, shape, 1, 1);
  const std::int64_t rows = row.long_tiles ? row.length : 0;
  forward.run(t, rows);
  const double time =
      gradients ? seconds([&] { backward.run(t); }) : seconds([&] { forward.run(t, rows); });
  const auto length = static_cast<double>(row.length);
  const double flops = (gradients ? 10 : 4) * length * length * row.d * (row.causal ? 0.5 : 1);
  std::printf(
      "%s bf16 %-6s sq%-5ld sk%-5ld d%-4d block_q=%-4d block_k=%-4d %9.3f ms %7.3f TFLOP/s\n",
      gradients ? "bwd" : "fwd", row.causal ? "causal" : "full", row.length, row.length, row.d,
      row.block_q, row.block_k, time * 1e3, flops / time * 1e-12);
  std::fflush(stdout);
}

// With the default blocks of select.cpp.
void table(bool gradients) {
  for (const int d : {64, 128}) {
    for (const bool causal : {false, true}) {
      for (const std::int64_t length : {1024, 2048, 4096}) {
        const bool narrow = d <= 64;
        const int block_q = gradients ? 128 : narrow ? 64 : 32;
        const int block_k = gradients ? 128 : narrow ? (causal ? 96 : 128) : 64;
        measure({length, d, causal, block_q, block_k, true}, gradients);
      }
    }
  }
}

void blocks(bool gradients) {
  for (const int d : {64, 128}) {
    for (const int block_q : {32, 64, 128, 256}) {
      for (const int block_k : {32, 64, 128, 256}) {
        if (gradients && block_q * block_k > 128 * 128) continue;
        measure({2048, d, false, block_q, block_k}, gradients);
      }
    }
  }
}

int run(int count, char** arguments) {
  const Verdict verdict = has(Target::cpu_amx);
  if (!verdict) {
    std::printf("%s\n", verdict.reason.c_str());
    return 1;
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
  for (int i = 1; i < count; ++i) {
    const std::string what = arguments[i];
    if (what == "parts") {
      parts();
      ends();
    }
    if (what == "forward") table(false);
    if (what == "backward") table(true);
    if (what == "blocks") {
      blocks(false);
      blocks(true);
    }
  }
  return 0;
}

}  // namespace
}  // namespace dfa::cpu

int main(int count, char** arguments) { return dfa::cpu::run(count, arguments); }
