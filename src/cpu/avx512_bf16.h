#pragma once

#include "cpu/engine.h"

namespace dfa::cpu {

// The AVX-512 engine for bf16 on processors with the bf16 dot product: two multiply-adds a lane.
const Engine& avx512_bf16_engine();

}  // namespace dfa::cpu
