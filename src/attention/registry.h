#pragma once

#include <string>
#include <vector>

#include "contract/backend.h"

namespace dfa {

// All backends in order of preference: the fastest first, the reference last.
const std::vector<const Backend*>& all_backends();

// By name. Throws InvalidArgument listing the names that are there.
const Backend& find_backend(const std::string& name);

}  // namespace dfa
