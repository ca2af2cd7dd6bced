#pragma once

#include "kernels/device.h"

// Codes of e4m3 as fp16 by their bits, where no instruction converts them.
namespace dfa {

// What numbers are to be multiplied by afterwards: the bits of an exponent mean less in fp16.
inline constexpr float kE4m3BitsUnit = 256;

// Two codes, each the upper byte of a half, as fp16 of 1 / kE4m3BitsUnit the size. The lower bytes
// may be anything. All numbers are exact, subnormal ones are so in fp16, too, and NaN stays NaN.
DFA_HOST_DEVICE unsigned e4m3_bits_as_fp16(unsigned codes) {
  const unsigned size = codes >> 1 & 0x3f803f80u;
  // The largest of all, 0x3f80, is NaN's: it gets the missing bit of the exponent.
  const unsigned nan = (size + 0x00800080u) & 0x40004000u;
  return size | nan | (codes & 0x80008000u);
}

}  // namespace dfa
