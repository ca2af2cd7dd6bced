#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dfa/dtype.h"

namespace dfa {

// The element type of this name, or none.
std::optional<DType> dtype_named(std::string_view name);

// All names, for messages: "fp32, tf32, …", or with another separator.
std::string dtype_names(std::string_view separator = ", ");

}  // namespace dfa
