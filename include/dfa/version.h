#pragma once

namespace dfa {
inline constexpr const char* kVersion = "0.1.0";
}  // namespace dfa
