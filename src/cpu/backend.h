#pragma once

#include "contract/backend.h"

namespace dfa {

// The CPU backend, at the highest instruction set this processor has (or DFA_ISA allows).
const Backend& cpu_backend();

}  // namespace dfa
