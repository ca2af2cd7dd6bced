#pragma once

namespace dfa {

// The family of kernels a configuration is for: an instruction set of a processor, or the least GPU
// architecture that runs them; those of cuda_sm90 run on that one alone.
enum class Target : int {
  cpu_portable,
  cpu_avx2,
  cpu_avx512,
  cpu_amx,
  cuda_sm75,
  cuda_sm80,
  cuda_sm90
};

// Those of a processor, from the lowest up, and those of a GPU.
inline constexpr Target kTargets[] = {Target::cpu_portable, Target::cpu_avx2, Target::cpu_avx512,
                                      Target::cpu_amx};
inline constexpr Target kGpuTargets[] = {Target::cuda_sm75, Target::cuda_sm80, Target::cuda_sm90};

constexpr bool is_gpu(Target target) { return target >= Target::cuda_sm75; }

}  // namespace dfa
