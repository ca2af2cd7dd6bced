#include "spec/sequences.h"

#include <string>

#include "dfa/error.h"

namespace dfa {
namespace {

struct Rows {
  std::int64_t begin, count;
};

// Those of sequence i of q or of k, whose names end with `of`.
Rows rows_of(const char* of, const std::int32_t* cu_seqlens, const std::int32_t* seqused,
             std::int64_t i, std::int64_t total, std::int64_t most) {
  const auto bad = [&](const std::string& what) {
    throw InvalidArgument(what + " of sequence " + std::to_string(i));
  };
  const std::int64_t begin = cu_seqlens[i], end = cu_seqlens[i + 1];
  const std::string name = std::string("cu_seqlens_") + of;
  if (i == 0 && begin < 0) bad(name + " begins with " + std::to_string(begin));
  if (end < begin)
    bad(name + " falls from " + std::to_string(begin) + " to " + std::to_string(end));
  if (end > total) {
    bad(name + " ends at " + std::to_string(end) + ", but the tensor has " + std::to_string(total) +
        " rows, at the end");
  }
  if (seqused != nullptr && (seqused[i] < 0 || seqused[i] > end - begin)) {
    bad(std::string("seqused_") + of + " is " + std::to_string(seqused[i]) + ", but " + name +
        " leaves " + std::to_string(end - begin) + " rows");
  }
  const std::int64_t count = seqused != nullptr ? seqused[i] : end - begin;
  if (count > most) {
    bad(std::string("max_seqlen_") + of + " is " + std::to_string(most) + ", below the " +
        std::to_string(count) + " rows");
  }
  return {begin, count};
}

// Rows of dense queries, where each sequence has as many.
Rows equal_rows(const Problem& p, const std::int32_t* used, std::int64_t i) {
  if (used == nullptr) return {i * p.sq, p.sq};
  if (used[i] < 0 || used[i] > p.sq) {
    throw InvalidArgument("seqused_q is " + std::to_string(used[i]) + ", but there are " +
                          std::to_string(p.sq) + " rows of sequence " + std::to_string(i));
  }
  return {i * p.sq, used[i]};
}

// Of a sequence in pages, counted in those.
Rows paged_rows(const Problem& p, const Sequences& s, std::int64_t i) {
  const std::int64_t end = s.seqused_k[i], begin = s.leftpad_k == nullptr ? 0 : s.leftpad_k[i];
  const std::string of = " of sequence " + std::to_string(i);
  const std::string used = "seqused_k is " + std::to_string(end);
  if (end < 0) throw InvalidArgument(used + of);
  if (end > p.table_columns() * p.page) {
    throw InvalidArgument(used + ", but block_table has " + std::to_string(p.table_columns()) +
                          " pages of " + std::to_string(p.page) + " rows" + of);
  }
  if (end > p.sk) {
    throw InvalidArgument("max_seqlen_k is " + std::to_string(p.sk) + ", below the " +
                          std::to_string(end) + " rows" + of);
  }
  if (begin < 0 || begin > end) {
    throw InvalidArgument("leftpad_k is " + std::to_string(begin) + "; accepted: 0 to seqused_k, " +
                          std::to_string(end) + "," + of);
  }
  return {begin, end - begin};
}

void require_pages(const Problem& p, const Sequences& s, std::int64_t i,
                   const SequencePlace& place) {
  if (place.q_rows == 0 || place.k_rows == 0) return;
  const std::int64_t end = place.k_begin + place.k_rows, pages = p.k_batches();
  for (std::int64_t n = first_seen(p, place) / p.page; n * p.page < end; ++n) {
    const std::int32_t entry = s.block_table[i * s.table_row + n];
    if (entry >= 0 && entry < pages) continue;
    throw InvalidArgument("block_table names page " + std::to_string(entry) + " in column " +
                          std::to_string(n) + " of sequence " + std::to_string(i) +
                          ", but the cache has pages 0 to " + std::to_string(pages - 1));
  }
}

std::vector<SequencePlace> paged_places_of(const Problem& p, const Sequences& s) {
  if (s.block_table == nullptr || s.seqused_k == nullptr) {
    throw InvalidArgument(std::string("pointer ") +
                          (s.block_table == nullptr ? "block_table" : "seqused_k") +
                          " is null; paged sequences name their pages and lengths");
  }
  std::vector<SequencePlace> places;
  for (std::int64_t i = 0; i < p.b; ++i) {
    const Rows q = s.cu_seqlens_q == nullptr
                       ? equal_rows(p, s.seqused_q, i)
                       : rows_of("q", s.cu_seqlens_q, s.seqused_q, i, p.total_q, p.sq);
    const Rows k = paged_rows(p, s, i);
    places.push_back({q.begin, q.count, k.begin, k.count});
    require_pages(p, s, i, places.back());
  }
  return places;
}

std::vector<SequencePlace> packed_places_of(const Problem& p, const Sequences& s) {
  if (s.cu_seqlens_q == nullptr || s.cu_seqlens_k == nullptr) {
    throw InvalidArgument(std::string("pointer ") +
                          (s.cu_seqlens_q == nullptr ? "cu_seqlens_q" : "cu_seqlens_k") +
                          " is null; packed sequences say where they begin");
  }
  std::vector<SequencePlace> places;
  for (std::int64_t i = 0; i < p.b; ++i) {
    const Rows q = rows_of("q", s.cu_seqlens_q, s.seqused_q, i, p.total_q, p.sq);
    const Rows k = rows_of("k", s.cu_seqlens_k, s.seqused_k, i, p.total_k, p.sk);
    places.push_back({q.begin, q.count, k.begin, k.count});
  }
  return places;
}

}  // namespace

std::vector<SequencePlace> places_of(const Problem& p, const Sequences& s) {
  return p.paged() ? paged_places_of(p, s) : packed_places_of(p, s);
}

std::int64_t first_seen(const Problem& p, const SequencePlace& place) {
  return place.k_begin + p.mask.key_begin(0, place.q_rows, place.k_rows);
}

}  // namespace dfa
