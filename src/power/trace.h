#pragma once

#include <string>

#include "power/controller.h"

namespace dfa::power {

// One line of JSON, keys with units; what is not known is null.
std::string to_json_line(const Decision& decision, const Setup& setup);

}  // namespace dfa::power
