#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

// Numbers of options, read alike in every command: decimal digits and nothing after them. CLI11's
// own reading takes 010 for 8, 0x10 for 16 and nan for a number.
namespace dfa::cli {

inline constexpr double kMostSeconds = 1e7;  // four months
inline constexpr std::int64_t kMostThreads = 1024;

template <typename Number, typename... Format>
bool read_all(const std::string& text, Number& value, Format... format) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, format...);
  return error == std::errc{} && stop == end;
}

// From `least`, which is 0 or 1.
inline CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        std::uint64_t value = 0;
        const bool zeros = text.size() > 1 && text.front() == '0';  // CLI11's octal numbers
        if (!read_all(text, value) || zeros || value < least || value > most) {
          return fmt::format("'{}' is no number {}: accepted are whole numbers from {} to {}", text,
                             least == 0 ? "of 0 or more" : "above 0", least, most);
        }
        return std::string();
      },
      "INTEGER");
}

inline CLI::Validator thread_count() { return whole_number(0, kMostThreads); }
inline CLI::Validator seed() { return whole_number(0, UINT64_MAX); }

// Digits and a unit; CLI11's own reading takes -1 for the largest number.
inline CLI::Validator size_text() {
  return CLI::Validator(
      [](const std::string& text) {
        const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
        const bool zeros = digits > 1 && text.front() == '0';
        const bool unit =
            std::all_of(text.begin() + static_cast<std::ptrdiff_t>(digits), text.end(),
                        [](unsigned char c) { return std::isalpha(c) != 0; });
        const bool good = digits > 0 && !zeros && unit;
        return good ? std::string()
                    : fmt::format("'{}' is no number of bytes: accepted are 1000000, 512MB, 2GiB",
                                  text);
      },
      "SIZE");
}

inline CLI::Validator seconds(double least = 0, double most = kMostSeconds) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        double value = 0;
        const bool good = read_all(text, value, std::chars_format::fixed) &&
                          (least > 0 ? value >= least : value > 0) && value <= most;
        if (good) return std::string();
        return fmt::format("'{}' is no number above 0: accepted are seconds {} to {}, as 2 or 0.5",
                           text, least > 0 ? fmt::format("from {}", least) : "above 0",
                           static_cast<std::int64_t>(most));
      },
      "SECONDS");
}

// A quantity that may be small: with an exponent too.
inline CLI::Validator above_zero() {
  return CLI::Validator(
      [](const std::string& text) {
        double value = 0;
        const bool good = read_all(text, value) && std::isfinite(value) && value > 0;
        return good
                   ? std::string()
                   : fmt::format(
                         "'{}' is no number above 0: accepted are finite ones, as 2 or 1e-3", text);
      },
      "POSITIVE");
}

}  // namespace dfa::cli
