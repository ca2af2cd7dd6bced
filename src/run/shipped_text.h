#pragma once

#include <span>

namespace dfa::run {

// The files of profiles/, as text; made by the build.
std::span<const char* const> shipped_texts();

}  // namespace dfa::run
