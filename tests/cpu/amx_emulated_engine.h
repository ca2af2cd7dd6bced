#pragma once

#include "cpu/engine.h"

namespace dfa::cpu {

// The AMX engine on emulated tiles. Needs AVX-512 with BF16, not AMX.
const Engine& amx_emulated_engine();

}  // namespace dfa::cpu
