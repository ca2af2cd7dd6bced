#include "cpu/pages.h"

#include <algorithm>
#include <cstring>

#include "cpu/head_start.h"

namespace dfa::cpu {

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
    const auto* from = static_cast<const std::byte*>(
        head_start(cache, strides, p_.dtype, table_[(pad_ + row) / p_.page], head));
    from += in_page * strides.row * bytes_of(p_.dtype);
    for (std::int64_t i = 0; i < count; ++i, to += row_bytes) {
      std::memcpy(to, from + i * strides.row * bytes_of(p_.dtype), row_bytes);
    }
    row += count;
  }
}

}  // namespace dfa::cpu
