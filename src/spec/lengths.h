#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dfa/problem.h"

// Lengths of packed sequences, as a problem line says them and as tensors have them.
namespace dfa {

// "N,N,…" or "zipf,N,SEED": N lengths of 16 to 2048, drawn so that short ones are the most. Throws
// InvalidArgument.
std::vector<std::int64_t> lengths_of(std::string_view text);
std::string lengths_text(const std::vector<std::int64_t>& lengths);

std::int64_t total_of(const std::vector<std::int64_t>& lengths);
// Those of whole pages that hold each.
std::int64_t rows_of_pages(const std::vector<std::int64_t>& lengths, std::int64_t page);
std::int64_t longest_of(const std::vector<std::int64_t>& lengths);  // 1 at least

// cu_seqlens: where each begins, and behind them the end of the last. int32, as kernels read it.
std::vector<std::int32_t> cu_seqlens_of(const std::vector<std::int64_t>& lengths);

// A sequence of a packed problem as a dense problem of its own, in the strides of the packed
// tensors, and in pages where those are; lse is the caller's to find. Requires rows: an empty
// sequence is no problem.
Problem sequence_of(const Problem& packed, std::int64_t q_rows, std::int64_t k_rows);

// Throws Unsupported where sequences are packed; what: who takes dense problems alone, "dfa
// analyze".
void require_dense(const Problem& problem, const char* what);

// Likewise where logits are not plain, and as require_dense().
void require_plain(const Problem& problem, const char* what);

// As many dense sequences of the mean length: what is planned by where no length is known.
Problem of_equal_lengths(const Problem& packed);

}  // namespace dfa
