#include "measure/sequence_arrays.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "dfa/error.h"
#include "spec/lengths.h"

namespace dfa::measure {
namespace {

void require_lengths(const Problem& p) {
  const bool dense_queries =
      p.paged() && p.total_q == p.b * p.sq && p.total_k == p.b * p.table_columns() * p.page;
  if (!p.lens_q.empty() || dense_queries) return;
  throw InvalidArgument("problem: '" + to_line(p) +
                        "' does not say its lengths; give lens(…) in the place of packed(…)");
}

const std::int32_t* or_null(const std::vector<std::int32_t>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

SequenceArrays::SequenceArrays(const Problem& p) {
  constexpr std::uint64_t kSeed = 17;
  if (!p.packed()) return;
  require_lengths(p);
  if (!p.lens_q.empty()) cu_seqlens_q = cu_seqlens_of(p.lens_q);
  if (!p.paged()) {
    cu_seqlens_k = cu_seqlens_of(p.lens_k);
    return;
  }
  std::vector<std::int32_t> free(static_cast<std::size_t>(p.k_batches()));
  std::iota(free.begin(), free.end(), 0);
  std::shuffle(free.begin(), free.end(), std::mt19937_64(kSeed));
  table_row = p.table_columns();
  for (std::int64_t i = 0; i < p.b; ++i) {
    const std::int64_t rows = p.lens_k.empty() ? p.sk : p.lens_k[static_cast<std::size_t>(i)];
    seqused_k.push_back(static_cast<std::int32_t>(rows));
    for (std::int64_t n = 0; n < table_row; ++n) {
      const bool used = n * p.page < rows;
      block_table.push_back(used ? free.back() : -1);
      if (used) free.pop_back();
    }
  }
}

Sequences SequenceArrays::pointers() const {
  return {.cu_seqlens_q = or_null(cu_seqlens_q),
          .cu_seqlens_k = or_null(cu_seqlens_k),
          .seqused_k = or_null(seqused_k),
          .block_table = or_null(block_table),
          .table_row = table_row};
}

}  // namespace dfa::measure
