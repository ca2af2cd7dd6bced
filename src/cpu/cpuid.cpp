#include "cpu/cpuid.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string_view>

#include "base/env.h"

namespace dfa::cpu {
namespace {

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool cpuid_has_amx_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0;
}

// Linux keeps the 8 KiB of tile registers off until a process asks for them.
bool kernel_grants_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

}  // namespace

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

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
  throw InvalidArgument("DFA_ISA=" + wanted + "; accepted: auto, portable, avx2, avx512, amx");
}

}  // namespace dfa::cpu
