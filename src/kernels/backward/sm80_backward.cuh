#pragma once

#include "kernels/backward/sm80_keys.cuh"
#include "kernels/backward/sm80_queries.cuh"
