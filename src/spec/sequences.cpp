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

}  // namespace

std::vector<SequencePlace> places_of(const Problem& p, const Sequences& s) {
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

}  // namespace dfa
