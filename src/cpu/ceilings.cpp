#include "cpu/ceilings.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/aligned.h"
#include "base/clock.h"
#include "cpu/cpuid.h"
#include "cpu/parallel.h"
#include "cpu/peak.h"

namespace dfa::cpu {
namespace {

const PeakLoop& vector_loop(Target target) {
  switch (target) {
    case Target::cpu_portable: return portable_peak();
    case Target::cpu_avx2: return avx2_peak();
    case Target::cpu_avx512:
    case Target::cpu_amx: return avx512_peak();
    case Target::cuda_sm75:
    case Target::cuda_sm80:
    case Target::cuda_sm90: break;
  }
  return portable_peak();
}

const PeakLoop& bf16_loop(Target target) {
  if (target == Target::cpu_amx) return amx_peak();
  if (target == Target::cpu_avx512 && has_avx512_bf16()) return avx512_bf16_peak();
  return vector_loop(target);  // bf16 is widened to fp32 there
}

// The best of many slices, all threads at once; each slice ends when the slowest thread does. A
// slice is shorter than what a scheduler grants at a time, or on a shared machine none would run
// undisturbed, and long enough to hide the start of the threads.
double peak_rate(const PeakLoop& loop, int threads, double seconds) {
  constexpr double kSlice = 2e-3;
  long iterations = 1000;
  double best = 0;
  const double end = monotonic_s() + seconds;
  do {
    const double begin = monotonic_s();
    parallel_for(threads, threads, [&](std::int64_t, int) { loop.run(iterations); });
    const double time = monotonic_s() - begin;
    best = std::max(best, loop.flops * static_cast<double>(iterations) * threads / time);
    if (time < kSlice) iterations *= 2;
  } while (monotonic_s() < end);
  return best;
}

// What the two copied buffers take together: four times the last cache, so that little of them can
// stay in it, but no more than a small machine has.
std::size_t copied_bytes() {
  constexpr std::size_t kLeast = std::size_t{128} << 20, kMost = std::size_t{512} << 20;
  const auto cache = static_cast<std::size_t>(std::max(0L, ::sysconf(_SC_LEVEL3_CACHE_SIZE)));
  return std::clamp(4 * cache, kLeast, kMost);
}

// Read plus write of buffers far beyond the last cache, in shares of a thread each.
double copy_rate(int threads, double seconds) {
  const std::size_t bytes = copied_bytes() / 2;
  AlignedBuffer from(bytes), to(bytes);
  std::memset(from.data(), 1, bytes);
  std::memset(to.data(), 2, bytes);
  const std::size_t share = bytes / static_cast<std::size_t>(threads) / 64 * 64;
  double best = 0;
  const double end = monotonic_s() + seconds;
  do {
    const double begin = monotonic_s();
    parallel_for(threads, threads, [&](std::int64_t index, int) {
      const std::size_t offset = static_cast<std::size_t>(index) * share;
      std::memcpy(to.as<char>() + offset, from.as<char>() + offset, share);
    });
    const double moved = 2.0 * static_cast<double>(share) * threads;
    best = std::max(best, moved / (monotonic_s() - begin));
  } while (monotonic_s() < end);
  return best;
}

}  // namespace

Ceilings measure_ceilings(Target target, int threads, double seconds) {
  Ceilings ceilings{.threads = threads};
  ceilings.fp32_flops = peak_rate(vector_loop(target), threads, seconds / 3);
  ceilings.fp16_flops = ceilings.fp32_flops;  // fp16 is widened to fp32 on every level
  ceilings.bf16_flops = peak_rate(bf16_loop(target), threads, seconds / 3);
  ceilings.copy_bytes = copy_rate(threads, seconds / 3);
  return ceilings;
}

}  // namespace dfa::cpu
