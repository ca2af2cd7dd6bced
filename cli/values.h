#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace dfa::cli {

// Numbers of an option, with words of our own: CLI11's name the largest double in full.
inline CLI::Validator number(const char* shown, const char* words, bool (*accepted)(double)) {
  return CLI::Validator(
      [words, accepted](std::string& text) {
        double value = 0;
        const bool good = CLI::detail::lexical_cast(text, value) && accepted(value);
        return good ? std::string() : fmt::format("'{}' is no number {}", text, words);
      },
      shown);
}

inline CLI::Validator above_zero() {
  return number("POSITIVE", "above 0", [](double v) { return v > 0 && std::isfinite(v); });
}

inline CLI::Validator from_zero() {
  return number("NONNEGATIVE", "of 0 or more", [](double v) { return v >= 0 && std::isfinite(v); });
}

}  // namespace dfa::cli
