#pragma once

// The same probes on the instructions that the kernels of Target::cuda_sm75 use.
#define DFA_SM75

#include "primitives/arithmetic_probes.cuh"
#include "primitives/memory_probes.cuh"
#include "primitives/tile_probes.cuh"
