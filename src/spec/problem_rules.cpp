#include "spec/problem_rules.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "dfa/error.h"
#include "dfa/problem.h"
#include "spec/blocks.h"
#include "spec/dropout.h"
#include "spec/lengths.h"
#include "spec/parse.h"
#include "spec/user_text.h"

namespace dfa {
namespace problem_rules {

void bad(const std::string& text) { throw InvalidArgument("problem: " + text); }

void require_size(const char* name, std::int64_t value) {
  if (value >= 1 && value <= kMaxSize) return;
  bad(std::string(name) + "=" + std::to_string(value) + "; sizes are from 1 to 2^40");
}

}  // namespace problem_rules

namespace {

using problem_rules::bad;
using problem_rules::kMaxSize;
using problem_rules::kMostSplits;
using problem_rules::require_size;

constexpr std::int64_t kMaxExtent = 1LL << 50;  // elements of one tensor, strides included
constexpr std::int64_t kDescaleStep = 64;       // rows of a warpgroup's product
// The latent heads of MLA, d 576 with dv 512, have no backward.
constexpr std::int64_t kMaxHeadDim = 512, kMaxForwardDim = 576;
// What engines, and the judge's yardstick with them, hold in fp32, and its reciprocal.
constexpr double kLeastScale = 0x1p-126, kMostScale = 0x1p127;
constexpr double kLeastSoftcap = 0x1p-100, kMostSoftcap = 0x1p100;

void require_head_dim(const char* name, std::int64_t value, std::int64_t most) {
  if (value >= 8 && value <= most && value % 8 == 0) return;
  bad(std::string(name) + "=" + std::to_string(value) +
      "; head dims are multiples of 8 from 8 to " + std::to_string(kMaxHeadDim) +
      ", d of a forward alone to " + std::to_string(kMaxForwardDim));
}

void require_strides(const char* name, const Strides& strides, std::int64_t b, std::int64_t h,
                     std::int64_t s, std::int64_t d) {
  const auto wrong = [&](const char* why) {
    bad(std::string("strides of ") + name + " (" + std::to_string(strides.batch) + "," +
        std::to_string(strides.head) + "," + std::to_string(strides.row) + ") " + why);
  };
  if (strides.row < d) wrong("have a row stride below the head dim: rows would overlap");
  if (strides.batch < 0 || strides.head < 0) wrong("are negative; they must be 0 or more");
  // Bound each product before forming it, so that nothing overflows.
  const std::int64_t limit = kMaxExtent / 4;
  if ((b - 1 > 0 && strides.batch > limit / b) || (h - 1 > 0 && strides.head > limit / h) ||
      (s - 1 > 0 && strides.row > limit / s)) {
    wrong("span more than 2^48 elements");
  }
}

// Written tensors must not place two elements at one address: strides must nest.
void require_disjoint(const char* name, const Strides& strides, std::int64_t b, std::int64_t h,
                      std::int64_t s, std::int64_t d) {
  struct Dim {
    std::int64_t stride, size;
  };
  Dim dims[] = {{strides.batch, b}, {strides.head, h}, {strides.row, s}};
  std::sort(std::begin(dims), std::end(dims), [](const Dim& a, const Dim& c) {
    return a.size == 1 || c.size == 1 ? a.size < c.size : a.stride < c.stride;
  });
  std::int64_t span = d;
  for (const Dim& dim : dims) {
    if (dim.size == 1) continue;
    if (dim.stride < span) {
      bad(std::string("strides of ") + name + " make elements overlap, but it is written");
    }
    span = dim.stride * (dim.size - 1) + span;
  }
}

void require_mask(const Mask& mask) {
  if (mask.left < -1 || mask.right < -1) bad("window sides must be -1 (no limit) or more");
  const auto require_positions = [](const char* name, std::int64_t value) {
    if (value >= 0 && value <= kMaxSize) return;
    bad(std::string(name) + " is " + std::to_string(value) +
        "; accepted: 1 to 2^40, or 0 for none");
  };
  require_positions("chunk", mask.chunk);
  require_positions("prefix", mask.prefix);
  if (mask.chunk > 0 && mask.prefix > 0) {
    bad("chunk and prefix do not go together; give one of them");
  }
  if (mask.prefix > 0 && (mask.left >= 0 || mask.right != 0)) {
    bad("prefix goes with a causal mask without a window; give causal");
  }
}

// Totals and lengths agree, and nothing has a stride from one sequence to the next.
void require_packed(const Problem& p) {
  require_size("total_q", p.total_q);
  require_size("total_k", p.total_k);
  if (p.sq > p.total_q || (p.sk > p.total_k && !p.paged())) {
    bad("sq=" + std::to_string(p.sq) + ", sk=" + std::to_string(p.sk) +
        " pass the rows of all sequences, packed(" + std::to_string(p.total_q) + "," +
        std::to_string(p.total_k) + ")");
  }
  if (p.layout != Layout::bhsd) bad("packed sequences are [total, h, d]; leave layout(…) out");
  for (const Strides& strides : {p.q(), p.o()}) {
    if (strides.batch != 0) bad("packed sequences have no stride of the batch; give 0");
  }
  if (!p.paged() && (p.k().batch != 0 || p.v().batch != 0)) {
    bad("packed sequences have no stride of the batch; give 0");
  }
  const auto agree = [&](const std::vector<std::int64_t>& lengths, std::int64_t most,
                         std::int64_t total) {
    return static_cast<std::int64_t>(lengths.size()) == p.b && longest_of(lengths) == most &&
           (&lengths == &p.lens_k && p.paged() ? rows_of_pages(lengths, p.page)
                                               : total_of(lengths)) == total;
  };
  if (p.lens_q.empty() && p.lens_k.empty()) return;
  if (p.lens_q.empty() || p.lens_k.empty() || !agree(p.lens_q, p.sq, p.total_q) ||
      !agree(p.lens_k, p.sk, p.total_k)) {
    bad("lens and lens_k do not agree with b, sq, sk and the totals");
  }
}

void require_paged(const Problem& p) {
  require_size("page", p.page);
  if (!p.packed()) bad("page(N) is of packed queries, or of dense ones in a problem line");
  if (p.pass != Pass::forward) bad("page(N) has no backward; accepted: the pass fwd");
  if (p.page > kMaxExtent / 4 / kMaxForwardDim / p.hk) {
    bad("a page would hold more than 2^48 elements");
  }
  if (p.total_k % p.page != 0) {
    bad("page(" + std::to_string(p.page) + ") does not divide the " + std::to_string(p.total_k) +
        " rows of all pages");
  }
}

void require_kv(const Problem& p) {
  if (!p.kv) return;
  const bool holds = p.dtype == DType::fp32 || p.dtype == DType::fp16 || p.dtype == DType::bf16;
  if (*p.kv == DType::e4m3 && p.paged() && holds) return;
  bad(std::string("kv(") + name_of(*p.kv) + ") of " + name_of(p.dtype) +
      (p.paged() ? "" : " without pages") +
      "; accepted: kv(e4m3) beside page(N) of fp32, fp16 and bf16");
}

void require_descale_rows(const Problem& p) {
  if (p.descale_rows == 0) return;
  const std::string given = "descale_rows(" + std::to_string(p.descale_rows) + ")";
  if (p.descale_rows < 0 || p.descale_rows > kMaxSize || p.descale_rows % kDescaleStep != 0) {
    bad(given + "; accepted: a multiple of " + std::to_string(kDescaleStep) + " up to 2^40");
  }
  if (p.dtype != DType::e4m3) bad(given + " of " + name_of(p.dtype) + "; accepted: of e4m3");
  if (p.packed()) bad(given + " of packed sequences; accepted: of dense tensors");
}

void require_splits(const Problem& p) {
  if (p.num_splits < 0 || p.num_splits > kMostSplits) {
    bad("num_splits is " + std::to_string(p.num_splits) + "; accepted: 0 to " +
        std::to_string(kMostSplits));
  }
  if (p.num_splits == 0 && !p.batch_invariant) return;
  const char* const name = p.batch_invariant ? "batch_invariant" : "num_splits";
  if (!p.packed())
    bad(std::string(name) +
        " is of packed sequences; accepted: beside lens(…), packed(…) or page(…)");
  if (p.pass != Pass::forward) bad(std::string(name) + " is of forwards; accepted: the pass fwd");
  if (p.batch_invariant && p.dropout > 0) {
    bad("batch_invariant beside dropout(…), whose masks go by the number of a sequence; accepted: "
        "one of them");
  }
  if (p.batch_invariant && p.num_splits > 1) {
    bad("num_splits(" + std::to_string(p.num_splits) +
        ") beside batch_invariant; accepted: 1, or none, as splits follow from lengths there");
  }
}

}  // namespace

Mask within_reach(Mask mask) {
  constexpr long long kNoLimit = 1LL << 41;
  if (mask.left >= kNoLimit) mask.left = -1;
  if (mask.right >= kNoLimit) mask.right = -1;
  return mask;
}

void validate(const Problem& p) {
  require_size("b", p.b);
  require_size("hq", p.hq);
  require_size("hk", p.hk);
  require_size("sq", p.sq);
  require_size("sk", p.sk);
  require_head_dim("d", p.d, p.pass == Pass::forward ? kMaxForwardDim : kMaxHeadDim);
  require_head_dim("dv", p.dv, kMaxHeadDim);
  if (p.hq % p.hk != 0) {
    bad("hq=" + std::to_string(p.hq) + " is not a multiple of hk=" + std::to_string(p.hk));
  }
  if (p.dtype == DType::e4m3 && p.pass != Pass::forward) {
    bad("e4m3 has a forward alone; accepted for a backward: fp32, tf32, fp16, bf16");
  }
  require_mask(p.mask);
  if (p.scale != 0 && !(std::fabs(p.scale) >= kLeastScale && std::fabs(p.scale) <= kMostScale)) {
    bad("scale is " + shortest(p.scale) +
        "; accepted: a finite number, in size from 2^-126 to 2^127, or none for 1/sqrt(d)");
  }
  if (p.softcap != 0 && !(p.softcap >= kLeastSoftcap && p.softcap <= kMostSoftcap)) {
    bad("softcap is " + shortest(p.softcap) +
        "; accepted: a finite number from 2^-100 to 2^100, or none");
  }
  require_dropout(p);
  for (const std::int64_t heads : {p.hq, p.hk}) {
    const std::int64_t s = heads == p.hq ? std::max(p.sq, p.sk) : p.sk;
    if (p.b > kMaxExtent / 4 / heads || p.b * heads > kMaxExtent / 4 / s / kMaxForwardDim) {
      bad("the tensors would hold more than 2^48 elements");
    }
  }
  if (p.paged()) require_paged(p);
  if (p.packed()) require_packed(p);
  if (p.blocks) require_blocks(p);
  require_user_text(p);
  require_splits(p);
  require_kv(p);
  require_descale_rows(p);
  const std::int64_t b = p.batches(), q_rows = p.q_rows(), k_rows = p.k_rows();
  const std::int64_t k_b = p.k_batches();
  require_strides("q", p.q(), b, p.hq, q_rows, p.d);
  require_strides("k", p.k(), k_b, p.hk, k_rows, p.d);
  require_strides("v", p.v(), k_b, p.hk, k_rows, p.dv);
  require_strides("o", p.o(), b, p.hq, q_rows, p.dv);
  require_disjoint("o", p.o(), b, p.hq, q_rows, p.dv);
  if (p.pass == Pass::forward) return;
  require_disjoint("dq", p.q(), b, p.hq, q_rows, p.d);
  require_disjoint("dk", p.k(), b, p.hk, k_rows, p.d);
  require_disjoint("dv", p.v(), b, p.hk, k_rows, p.dv);
}

}  // namespace dfa
