#pragma once

#include "base/enum_table.h"
#include "spec/config.h"

// Names of what configurations hold, apart from the configurations, which kernels include.
namespace dfa {

inline constexpr auto kTargetNames = enum_table<Target>({{Target::cpu_portable, "cpu_portable"},
                                                         {Target::cpu_avx2, "cpu_avx2"},
                                                         {Target::cpu_avx512, "cpu_avx512"},
                                                         {Target::cpu_amx, "cpu_amx"},
                                                         {Target::cuda_sm75, "cuda_sm75"},
                                                         {Target::cuda_sm80, "cuda_sm80"},
                                                         {Target::cuda_sm90, "cuda_sm90"}});
constexpr const char* name_of(Target target) { return kTargetNames.name(target); }

inline constexpr auto kDqAccumulationNames =
    enum_table<DqAccumulation>({{DqAccumulation::separate, "separate"},
                                {DqAccumulation::serialized, "serialized"},
                                {DqAccumulation::serialized_fused, "serialized_fused"},
                                {DqAccumulation::atomic, "atomic"},
                                {DqAccumulation::atomic_fused, "atomic_fused"}});
constexpr const char* name_of(DqAccumulation dq) { return kDqAccumulationNames.name(dq); }

}  // namespace dfa
