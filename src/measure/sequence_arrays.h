#pragma once

#include <cstdint>
#include <vector>

#include "dfa/attention.h"

namespace dfa::measure {

// What says where the sequences of a problem line lie (Sequences), on the host; nothing where it is
// dense. Pages lie in no order, as a server's do.
struct SequenceArrays {
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;
  std::vector<std::int32_t> seqused_k, block_table;
  std::int64_t table_row = 0;

  // Throws InvalidArgument where the problem does not say its lengths.
  explicit SequenceArrays(const Problem& problem);

  Sequences pointers() const;
};

}  // namespace dfa::measure
