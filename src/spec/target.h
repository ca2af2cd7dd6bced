#pragma once

namespace dfa {

// The family of kernels a configuration is for: an instruction set of a processor.
enum class Target : int { cpu_portable, cpu_avx2, cpu_avx512, cpu_amx };

inline constexpr Target kTargets[] = {Target::cpu_portable, Target::cpu_avx2, Target::cpu_avx512,
                                      Target::cpu_amx};

constexpr const char* name_of(Target target) {
  switch (target) {
    case Target::cpu_portable: return "cpu_portable";
    case Target::cpu_avx2: return "cpu_avx2";
    case Target::cpu_avx512: return "cpu_avx512";
    case Target::cpu_amx: return "cpu_amx";
  }
  return "?";
}

}  // namespace dfa
