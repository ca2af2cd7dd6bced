#pragma once

#include "contract/backend.h"

namespace dfa {

// fp64 attention on one thread, results rounded to the problem's type. Slow and right.
const Backend& reference_backend();

}  // namespace dfa
