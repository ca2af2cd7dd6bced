#include "reference/finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/element.h"
#include "reference/head.h"
#include "reference/seen.h"

namespace dfa {
namespace {

// Calls visit(b, h, s, x, value) for every element whose bits of the mask are all ones, until it
// answers true.
template <typename Word, typename Visit>
bool any_special(std::int64_t batches, const TensorView& t, Word mask, Visit&& visit) {
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t h = 0; h < t.heads; ++h) {
      for (std::int64_t s = 0; s < t.rows; ++s) {
        const std::int64_t start = b * t.strides.batch + h * t.strides.head + s * t.strides.row;
        const Word* row = static_cast<const Word*>(t.data) + start;
        for (std::int64_t x = 0; x < t.cols; ++x) {
          const bool special = (row[x] & mask) == mask;
          if (special && visit(b, h, s, x, load_element(t.data, t.type, start + x))) return true;
        }
      }
    }
  }
  return false;
}

}  // namespace

std::string first_non_finite(std::int64_t batches, const TensorView& tensor, Infinity infinity) {
  std::string found;
  const auto visit = [&](std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t x,
                         float value) {
    if (std::isinf(value) && infinity == Infinity::may_be_right) return false;
    found = fmt::format("at b{} h{} s{} x{}: {} where a number is right", b, h, s, x, value);
    return true;
  };
  switch (tensor.type) {
    case DType::e4m3: any_special<std::uint8_t>(batches, tensor, 0x7f, visit); break;
    case DType::fp16: any_special<std::uint16_t>(batches, tensor, 0x7c00, visit); break;
    case DType::bf16: any_special<std::uint16_t>(batches, tensor, 0x7f80, visit); break;
    case DType::fp32:
    case DType::tf32: any_special<std::uint32_t>(batches, tensor, 0x7f800000, visit); break;
  }
  return found;
}

std::string first_non_finite_lse(const Problem& p, const float* lse, const BlockLists& blocks) {
  constexpr float kNoKey = -std::numeric_limits<float>::infinity();
  for (std::int64_t n = 0; n < p.b * p.hq * p.sq; ++n) {
    const std::int64_t i = n % p.sq;
    // A query that sees any key sees the one that is nearest to its own position.
    const std::int64_t nearest = std::clamp<std::int64_t>(i + p.sk - p.sq, 0, p.sk - 1);
    const bool listed = SeenBlocks(p, blocks, n / p.sq / p.hq, n / p.sq % p.hq).lists_keys_of(i);
    const bool sees_keys = listed && is_visible(p, i, nearest);
    // Of listed keys a mask may hide all, or a bitmap have none, and a text may say anything: then
    // both are right.
    const bool unsure =
        p.has_text() || (p.blocks && listed && (!p.mask.is_full() || p.blocks->bitmaps));
    if (unsure && lse[n] == kNoKey) continue;
    if (sees_keys ? std::isfinite(lse[n]) : lse[n] == kNoKey) continue;
    return fmt::format("at b{} h{} s{}: {} where {} is right", n / p.sq / p.hq, n / p.sq % p.hq, i,
                       lse[n], sees_keys ? "a number" : "-inf");
  }
  return "";
}

bool inputs_are_finite(const Problem& p, const void* q, const void* k, const void* v,
                       const void* d_o) {
  const auto finite = [&](const TensorView& tensor) {
    return tensor.data == nullptr || first_non_finite(p.b, tensor, Infinity::wrong).empty();
  };
  return finite({q, p.dtype, p.q(), p.hq, p.sq, p.d}) &&
         finite({k, p.kv_dtype(), p.k(), p.hk, p.sk, p.d}) &&
         finite({v, p.kv_dtype(), p.v(), p.hk, p.sk, p.dv}) &&
         finite({d_o, p.o_dtype(), p.o(), p.hq, p.sq, p.dv});
}

}  // namespace dfa
