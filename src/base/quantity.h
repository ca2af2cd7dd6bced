#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace dfa {

// The number above 0 of "500W" where the unit is "W"; nothing for any other text.
inline std::optional<double> number_with(std::string_view text, std::string_view unit) {
  if (!text.ends_with(unit)) return std::nullopt;
  text.remove_suffix(unit.size());
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && number > 0 ? std::optional(number) : std::nullopt;
}

struct Range {
  double least = 0;
  double most = 0;

  bool holds(double value) const { return value >= least && value <= most; }
  bool operator==(const Range&) const = default;
};

// "900:1980MHz", or of one number "1200MHz"; nothing for any other text, or where it ends before it
// begins. In the unit's own size.
inline std::optional<Range> range_with(std::string_view text, std::string_view unit) {
  const std::size_t colon = text.find(':');
  const bool one = colon == std::string_view::npos;
  const auto most = number_with(one ? text : text.substr(colon + 1), unit);
  const auto least = one ? most : number_with(text.substr(0, colon), "");
  if (!least || !most || *least > *most) return std::nullopt;
  return Range{*least, *most};
}

}  // namespace dfa
