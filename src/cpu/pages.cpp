#include "cpu/pages.h"

#include <algorithm>
#include <cstring>

#include "base/element.h"
#include "cpu/head_start.h"

namespace dfa::cpu {
namespace {

// All numbers of e4m3, exact in any other type.
template <typename Word>
struct Widened {
  Word of[256];

  explicit Widened(DType type) {
    for (int code = 0; code < 256; ++code) {
      const auto byte = static_cast<std::uint8_t>(code);
      store_element(of, type, code, load_element(&byte, DType::e4m3, 0));
    }
  }
};

template <typename Word>
void widen_row(const Widened<Word>& numbers, const std::byte* from, std::int64_t count,
               std::byte* to) {
  auto* const out = reinterpret_cast<Word*>(to);
  for (std::int64_t x = 0; x < count; ++x) out[x] = numbers.of[static_cast<std::uint8_t>(from[x])];
}

void widen_row(DType type, const std::byte* from, std::int64_t count, std::byte* to) {
  static const Widened<std::uint32_t> fp32(DType::fp32);
  static const Widened<std::uint16_t> fp16(DType::fp16), bf16(DType::bf16);
  if (type == DType::fp32) return widen_row(fp32, from, count, to);
  widen_row(type == DType::fp16 ? fp16 : bf16, from, count, to);
}

}  // namespace

PageRows::PageRows(const Problem& p, const ForwardArgs& args)
    : p_(p),
      table_(args.sequences.block_table),
      pad_(args.sequences.leftpad_k == nullptr ? 0 : *args.sequences.leftpad_k),
      seen_(p.mask.key_begin(0, p.sq, p.sk)) {}

void PageRows::gather(const void* cache, const Strides& strides, std::int64_t head,
                      std::int64_t dim, std::int64_t begin, std::int64_t end, std::byte* to) const {
  const auto row_bytes = static_cast<std::size_t>(dim * bytes_of(p_.dtype));
  const std::int64_t hidden = std::clamp(seen_ - begin, std::int64_t{0}, end - begin);
  std::memset(to, 0, row_bytes * static_cast<std::size_t>(hidden));
  to += row_bytes * static_cast<std::size_t>(hidden);
  for (std::int64_t row = begin + hidden; row < end;) {
    const std::int64_t in_page = (pad_ + row) % p_.page;
    const std::int64_t count = std::min(p_.page - in_page, end - row);
    const DType stored = p_.kv_dtype();
    const auto* from = static_cast<const std::byte*>(
        head_start(cache, strides, stored, table_[(pad_ + row) / p_.page], head));
    from += in_page * strides.row * bytes_of(stored);
    for (std::int64_t i = 0; i < count; ++i, to += row_bytes) {
      const std::byte* const own = from + i * strides.row * bytes_of(stored);
      if (stored == p_.dtype) {
        std::memcpy(to, own, row_bytes);
      } else {
        widen_row(p_.dtype, own, dim, to);
      }
    }
    row += count;
  }
}

}  // namespace dfa::cpu
