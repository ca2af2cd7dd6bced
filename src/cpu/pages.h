#pragma once

#include <cstddef>
#include <cstdint>

#include "dfa/attention.h"

namespace dfa::cpu {

// One sequence of a paged problem (Problem::paged), of which k or v is read a head at a time.
// Requires what places_of() has looked at.
class PageRows {
 public:
  // problem: of one sequence; its table and left padding are those of args.
  PageRows(const Problem& problem, const ForwardArgs& args);

  // Rows [begin, end) of a head, `dim` elements each, one after the other, in the type of q. Those
  // that no query sees become zeros: their pages may be none.
  void gather(const void* cache, const Strides& strides, std::int64_t head, std::int64_t dim,
              std::int64_t begin, std::int64_t end, std::byte* to) const;

 private:
  const Problem& p_;
  const std::int32_t* table_;
  std::int64_t pad_, seen_;
};

}  // namespace dfa::cpu
