#pragma once

#include <bit>
#include <cstdint>

// Conversions between fp32 and the 16-bit and 8-bit storage types, round to nearest even, NaN kept
// quiet.
namespace dfa {

struct bf16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(bf16, bf16) = default;
};

struct fp16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(fp16, fp16) = default;
};

struct e4m3 {
  std::uint8_t bits = 0;
  friend constexpr bool operator==(e4m3, e4m3) = default;
};

constexpr bf16 to_bf16(float value) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  }
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<std::uint16_t>(bits >> 16)};
}

constexpr float to_float(bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

constexpr fp16 to_fp16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // ≥ 65520
  if (magnitude < 0x38800000u) {  // subnormal: let an fp32 addition round at bit 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(
        sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5f)))};
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return {static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13))};
}

constexpr float to_float(fp16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

// Without infinities; larger numbers become the largest, 448, as a processor's conversion makes
// them.
constexpr e4m3 to_e4m3(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint8_t>(sign | 0x7fu)};
  if (magnitude >= 0x43e80000u) return {static_cast<std::uint8_t>(sign | 0x7eu)};  // ≥ 464
  if (magnitude < 0x3c800000u) {  // subnormal: let an fp32 addition round at bit 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return {static_cast<std::uint8_t>(
        sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0x1p14f)))};
  }
  const std::uint32_t odd = (magnitude >> 20) & 1u;
  return {static_cast<std::uint8_t>(sign | ((magnitude - 0x3c000000u + 0x7ffffu + odd) >> 20))};
}

constexpr float to_float(e4m3 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x80u) << 24;
  const std::uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {
    const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
    return sign ? -subnormal : subnormal;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + 0x3c000000u));
}

constexpr float to_float(float value) { return value; }

}  // namespace dfa
