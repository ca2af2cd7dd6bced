#pragma once

#include <string>

#include "dfa/attention.h"

namespace dfa {

// auto, standard or flash. Throws InvalidArgument with what is accepted.
Algorithm parse_algorithm(const std::string& name);
const char* name_of(Algorithm algorithm);

}  // namespace dfa
