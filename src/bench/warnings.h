#pragma once

#include <string>
#include <vector>

#include "bench/result.h"

namespace dfa::bench {

// What makes numbers of a result doubtful, one line each, none when nothing does: others at work on
// the processors or on the GPU, two power sensors that do not agree, clocks held down by heat.
std::vector<std::string> warnings(const Result& result);

}  // namespace dfa::bench
