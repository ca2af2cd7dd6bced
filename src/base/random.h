#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

// A counter-based generator: value i of a seed does not depend on what was drawn before, so tensors
// fill in any order and on any number of threads. The mixer is splitmix64's.
namespace dfa {

constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Random {
 public:
  constexpr explicit Random(std::uint64_t seed) : key_(mix64(seed)) {}

  constexpr std::uint64_t bits(std::uint64_t index) const { return mix64(key_ ^ mix64(index)); }

  // Uniform in (0, 1).
  constexpr double uniform(std::uint64_t index) const {
    return (static_cast<double>(bits(index) >> 12) + 0.5) * 0x1p-52;
  }

  // Integer in [0, count).
  constexpr std::uint64_t below(std::uint64_t index, std::uint64_t count) const {
    return static_cast<std::uint64_t>(uniform(index) * static_cast<double>(count));
  }

  // Standard normal, by Box–Muller.
  float normal(std::uint64_t index) const {
    const std::uint64_t pair = bits(index >> 1);
    const float u = (static_cast<float>(pair >> 40) + 0.5f) * 0x1p-24f;
    const float v = static_cast<float>(pair & 0xffffffu) * 0x1p-24f;
    const float radius = std::sqrt(-2.0f * std::log(u));
    const float angle = 2.0f * std::numbers::pi_v<float> * v;
    return radius * ((index & 1u) ? std::sin(angle) : std::cos(angle));
  }

 private:
  std::uint64_t key_;
};

}  // namespace dfa
