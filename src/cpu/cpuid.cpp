#include "cpu/cpuid.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "base/env.h"
#include "spec/config_names.h"

namespace dfa::cpu {
namespace {

// What the processor says and what the system saves of it. __builtin_cpu_supports would ask the
// compiler's run-time library, which not every compiler fills in: Zig's says no to all.
struct Features {
  unsigned ecx1 = 0;                          // of leaf 1
  unsigned ebx7 = 0, edx7 = 0, eax7_1 = 0;    // of leaf 7, and of its subleaf 1
  bool saves_ymm = false, saves_zmm = false;  // XCR0: registers kept when threads take turns

  static bool all(unsigned word, std::initializer_list<int> bits) {
    return std::all_of(bits.begin(), bits.end(),
                       [word](int bit) { return (word >> bit & 1U) != 0; });
  }
};

Features read_features() {
  Features read;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &read.ecx1, &edx) == 0) return read;
  constexpr int kOsxsave = 27;
  if (read.all(read.ecx1, {kOsxsave})) {
    unsigned low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    read.saves_ymm = (low & 0x6U) == 0x6U;
    read.saves_zmm = (low & 0xE6U) == 0xE6U;
  }
  if (__get_cpuid_count(7, 0, &eax, &read.ebx7, &ecx, &read.edx7) == 0 || eax < 1) return read;
  __get_cpuid_count(7, 1, &read.eax7_1, &ebx, &ecx, &edx);
  return read;
}

const Features& features() {
  static const Features read = read_features();
  return read;
}

bool has_avx2() {
  constexpr int kFma = 12, kF16c = 29, kAvx2 = 5;
  const Features& f = features();
  return f.saves_ymm && f.all(f.ecx1, {kFma, kF16c}) && f.all(f.ebx7, {kAvx2});
}

bool has_avx512() {
  constexpr int kF = 16, kDq = 17, kBw = 30, kVl = 31;
  const Features& f = features();
  return has_avx2() && f.saves_zmm && f.all(f.ebx7, {kF, kDq, kBw, kVl});
}

bool cpuid_has_amx_bf16() {
  constexpr int kAmxBf16 = 22, kAmxTile = 24;
  return features().all(features().edx7, {kAmxBf16, kAmxTile});
}

// Linux keeps the 8 KiB of tile registers off until a process asks for them.
bool kernel_grants_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

}  // namespace

bool has_avx512_bf16() {
  constexpr int kBf16 = 5;
  return has_avx512() && features().all(features().eax7_1, {kBf16});
}

Verdict has(Target target) {
  switch (target) {
    case Target::cpu_portable: return Verdict::yes();
    case Target::cpu_avx2:
      return has_avx2() ? Verdict::yes() : Verdict::no("the processor lacks AVX2, FMA or F16C");
    case Target::cpu_avx512:
      return has_avx512() ? Verdict::yes()
                          : Verdict::no("the processor lacks AVX-512 F, BW, DQ or VL");
    case Target::cpu_amx:
      if (!has_avx512_bf16()) return Verdict::no("the processor lacks AVX-512 with BF16");
      if (!cpuid_has_amx_bf16()) return Verdict::no("the processor lacks AMX-BF16");
      if (!kernel_grants_tiles()) return Verdict::no("the kernel refuses the AMX tile registers");
      return Verdict::yes();
    case Target::cuda_sm75:
    case Target::cuda_sm80:
    case Target::cuda_sm90: return Verdict::no("it is a GPU's, not a processor's");
  }
  return Verdict::no("unknown target");
}

Target highest_target() {
  constexpr std::string_view kPrefix = "cpu_";
  const std::string wanted = env("DFA_ISA");
  if (wanted == "auto") {
    Target highest = Target::cpu_portable;
    for (const Target target : kTargets) {
      if (has(target)) highest = target;
    }
    return highest;
  }
  for (const Target target : kTargets) {
    if (wanted != std::string_view(name_of(target)).substr(kPrefix.size())) continue;
    const Verdict verdict = has(target);
    if (!verdict) throw Unsupported("DFA_ISA=" + wanted + ": " + verdict.reason);
    return target;
  }
  std::string accepted = "auto";
  for (const Target target : kTargets) {
    accepted += ", " + std::string(std::string_view(name_of(target)).substr(kPrefix.size()));
  }
  throw InvalidArgument("DFA_ISA=" + wanted + "; accepted: " + accepted);
}

}  // namespace dfa::cpu
