#pragma once

#include <string>

#include "dfa/error.h"
#include "spec/target.h"

namespace dfa::cpu {

// Can this processor, its kernel and its hypervisor run kernels of this target? For AMX this asks
// the kernel once for permission to use the tile registers.
Verdict has(Target target);

// Does the AVX-512 level have the bf16 dot product as well?
bool has_avx512_bf16();

// The highest target that has() grants and DFA_ISA does not forbid. Throws InvalidArgument when
// DFA_ISA names no level, Unsupported when it names one that is not there.
Target highest_target();

}  // namespace dfa::cpu
