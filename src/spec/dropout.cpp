#include "spec/dropout.h"

#include <cmath>
#include <optional>
#include <vector>

#include "dfa/attention.h"
#include "spec/parse.h"

namespace dfa {
namespace {

constexpr std::int64_t kMostRows = std::int64_t{1} << 31;  // that 32 bits number, and heads

bool is_probability(double p) { return p >= 0 && p < 1; }  // NaN is none

}  // namespace

DropoutDraw dropout_of(const Problem& p) {
  if (p.dropout == 0) return {};
  constexpr double kNumbers = DropoutDraw::kNumbers;
  const double dropped = std::fmin(std::fmax(std::round(p.dropout * kNumbers), 1), kNumbers - 1);
  return {.kept = static_cast<std::uint32_t>(kNumbers - dropped),
          .factor = static_cast<float>(kNumbers / (kNumbers - dropped))};
}

DropoutDraw dropout_of(const Problem& p, const Logits& logits) {
  DropoutDraw draw = dropout_of(p);
  if (!draw.drops()) return draw;
  const std::uint64_t* given = logits.dropout;
  const std::uint64_t seed = given == nullptr ? p.dropout_seed : given[0];
  const std::uint64_t offset = given == nullptr ? 0 : given[1];
  draw.key[0] = static_cast<std::uint32_t>(seed);
  draw.key[1] = static_cast<std::uint32_t>((seed ^ offset) >> 32);
  draw.offset = static_cast<std::uint32_t>(offset);
  return draw;
}

void set_dropout(Problem& p, std::string_view text) {
  const std::vector<std::string_view> parts = between_commas(text);
  const bool two = parts.size() == 2;
  const auto probability = two ? to_number<double>(parts[0]) : std::nullopt;
  const auto seed = two ? to_number<std::uint64_t>(parts[1]) : std::nullopt;
  if (!probability || !seed || !is_probability(*probability)) {
    throw InvalidArgument("problem: 'dropout(" + std::string(text.substr(0, 60)) +
                          ")' is not of the form dropout(P,SEED), P from 0 on and below 1, SEED a "
                          "whole number from 0 to 2^64 - 1");
  }
  p.dropout = *probability == 0 ? 0 : *probability;  // -0 is none
  p.dropout_seed = *probability == 0 ? 0 : *seed;
}

std::string dropout_text(const Problem& p) {
  if (p.dropout == 0) return "";
  return " dropout(" + shortest(p.dropout) + "," + std::to_string(p.dropout_seed) + ")";
}

void require_dropout(const Problem& p) {
  if (!is_probability(p.dropout)) {
    throw InvalidArgument("problem: dropout is " + shortest(p.dropout) +
                          "; accepted: from 0 on and below 1");
  }
  if (p.dropout == 0) {
    if (p.dropout_seed == 0) return;
    throw InvalidArgument("problem: dropout_seed is " + std::to_string(p.dropout_seed) +
                          " without dropout; accepted: 0");
  }
  if (p.sq > kMostRows || p.sk > kMostRows || p.b > kMostRows / p.hq) {
    throw InvalidArgument("problem: dropout takes sq, sk and b * hq up to 2^31");
  }
}

}  // namespace dfa
