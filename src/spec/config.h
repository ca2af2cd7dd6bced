#pragma once

// Kernel configurations: plain values shared by the host compiler, nvcc and NVRTC, so nothing but
// include-free headers may be included in these. The same value is template argument, cache key,
// log line and JSON field.
#include "spec/backward_config.h"
#include "spec/forward_config.h"
