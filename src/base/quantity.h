#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

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

// The numbers of "1980,1500,1200MHz" or "1200:1980:60MHz", from the first to at most the second in
// steps of the third, the highest first and each once; nothing for any other text, nor for more
// than a hundred.
inline std::optional<std::vector<double>> list_with(std::string_view text, std::string_view unit) {
  constexpr std::size_t kMost = 100;
  if (!text.ends_with(unit)) return std::nullopt;
  text.remove_suffix(unit.size());
  std::vector<double> numbers;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    more = comma != std::string_view::npos;
    text.remove_prefix(more ? comma + 1 : text.size());
    const std::size_t first = item.find(':'), second = item.find(':', first + 1);
    const bool one = first == std::string_view::npos;
    if (!one && second == std::string_view::npos) return std::nullopt;
    const auto least = number_with(item.substr(0, first), "");
    const auto most = one ? least : number_with(item.substr(first + 1, second - first - 1), "");
    const auto step = one ? 1.0 : number_with(item.substr(second + 1), "");
    if (!least || !most || !step || *least > *most) return std::nullopt;
    for (double at = *least; at <= *most * (1 + 1e-12); at += *step) {
      if (numbers.size() == kMost) return std::nullopt;
      numbers.push_back(at);
    }
  }
  std::ranges::sort(numbers, std::greater());
  numbers.erase(std::ranges::unique(numbers).begin(), numbers.end());
  return numbers;
}

}  // namespace dfa
