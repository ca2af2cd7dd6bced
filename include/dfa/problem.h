#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dfa/blocks.h"
#include "dfa/dtype.h"
#include "dfa/export.h"
#include "dfa/mask.h"

namespace dfa {

enum class Pass : int { forward, backward, forward_backward };

// Strides of one tensor, in elements; the last dimension is always contiguous.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;

  friend constexpr bool operator==(const Strides&, const Strides&) = default;
};

// Order of the dimensions of dense tensors: [b, h, s, d] (PyTorch SDPA) or [b, s, h, d]
// (flash-attn).
enum class Layout : int { bhsd, bshd };

// Values that are added to the logits: a tensor [b, hq, sq, sk] in which a dimension that it is not
// `of` has size 1, one value for all. Of packed sequences b counts those, and rows and keys are
// their own, from 0. A value below kBiasHides hides the key as a mask does: differences of such
// logits have no digits left.
struct Bias {
  bool of_batch = false;
  bool of_head = false;
  bool of_query = true;
  bool of_key = true;
  DType dtype = DType::fp32;  // fp32, fp16 or bf16

  friend constexpr bool operator==(const Bias&, const Bias&) = default;
};

// One attention problem, a plain value. Shapes: q, do, dq [b, hq, sq, d]; k, dk [b, hk, sk, d];
// v, dv [b, hk, sk, dv]; o, do [b, hq, sq, dv]; lse [b, hq, sq] (fp32, natural log, dense).
// q, k, v have the element type; o has it too, but bf16 where they are e4m3, which has a forward
// alone and factors beside its tensors (Descales in dfa/attention.h).
//   o = dropout(softmax(logits + mask)) v,  logits = scale * q k^T, or what score_mod, softcap,
//   alibi, bias and sink make of it
// hq must be a multiple of hk: query head h reads key/value head h / (hq / hk). d and dv are
// multiples of 8 from 8 to 512, d of a forward without a backward up to 576.
//
// Packed, sequences of lengths of their own follow each other: q, do, dq [total_q, hq, d]; k, dk
// [total_k, hk, d]; v, dv [total_k, hk, dv]; o, do [total_q, hq, dv]; lse [hq, total_q]. There are
// b of them, sq and sk are the most rows one of them has, and where each lies comes with the
// pointers (Sequences in dfa/attention.h), so that a plan serves all lengths. The mask is each
// sequence's.
//
// Paged, keys and values of packed queries lie in pages of a cache: k [pages, page, hk, d], v
// [pages, page, hk, dv], and a block table that comes with the pointers says which pages are a
// sequence's. sk is the most rows one may have, which is how many columns of its table are looked
// at; total_k counts the rows of all pages. Forward only.
struct DFA_API Problem {
  Pass pass = Pass::forward;
  DType dtype = DType::fp32;
  Mask mask = kFull;
  std::int64_t b = 1;
  std::int64_t hq = 1;
  std::int64_t hk = 1;
  std::int64_t sq = 1;
  std::int64_t sk = 1;
  std::int64_t d = 64;
  std::int64_t dv = 64;
  double scale = 0;            // 0: the usual 1 / sqrt(d)
  bool deterministic = false;  // gradients have the same bits in every run
  // Of the logits, in this order, before the mask. Slopes, biases and sinks come with the pointers
  // (Logits in dfa/attention.h).
  double softcap = 0;          // c: a logit x becomes c * tanh(x / c); 0: none
  bool alibi = false;          // less the head's slope times the distance |i + sk - sq - j|
  std::optional<Bias> bias{};  // and these values more
  bool sink = false;  // one more logit a head, as it is, in the denominator and in lse, of no value
  // Each probability is 0 with this probability, from 0 on and below 1, in steps of 2^-16, and else
  // divided by that of being kept. lse is as without. Which are dropped follows from the seed, or
  // what comes with the pointers in its place (Logits::dropout), and nothing else of how it runs.
  double dropout = 0;
  std::uint64_t dropout_seed = 0;
  std::optional<BlockMask> blocks{};  // beside the mask; of dense problems
  // A mask of the caller's own, beside the others, and what becomes of scale * q k^T before
  // softcap: each one C++ expression (docs/design/0036-user-text.md), a bool of b, h, q_idx,
  // kv_idx, sq and sk, and a float of score and these. The derivative follows from the text. A
  // score below kBiasHides hides the key. Empty: none.
  std::string mask_mod{};
  std::string score_mod{};
  // Of forwards of packed sequences, what a GPU's kernel may do: splits of a tile's keys
  // (split-KV), 1: none, more: so many at most, 0: as planned. A processor never splits.
  int num_splits = 0;
  // Likewise: o and lse of a sequence have the same bits whatever else is in the call, on the same
  // device by the same build. Splits, if any, then have sizes that follow from its own length.
  bool batch_invariant = false;
  // Rows of q, k or v that share a factor of e4m3, a multiple of 64, of dense problems; 0: all of a
  // sequence. Row r has that of block r / descale_rows.
  std::int64_t descale_rows = 0;
  Layout layout = Layout::bhsd;
  // Zero strides mean dense in `layout`. Gradients share the strides of their tensor.
  Strides q_strides{};
  Strides k_strides{};
  Strides v_strides{};
  Strides o_strides{};
  // Of packed sequences: rows of all of them; 0: dense. Strides of the batch are 0 then.
  std::int64_t total_q = 0;
  std::int64_t total_k = 0;
  std::int64_t page = 0;  // rows of a page of k and v; 0: not paged
  // Element type of k and v in pages, e4m3 beside q and o in fp32, fp16 or bf16; none: q's. Factors
  // come with the pointers (Descales in dfa/attention.h), of k and v alone.
  std::optional<DType> kv{};
  // Their lengths, where a problem line says them: tests, benchmarks and counts of operations go by
  // them, kernels by the pointers.
  std::vector<std::int64_t> lens_q{};
  std::vector<std::int64_t> lens_k{};

  DType o_dtype() const { return output_of(dtype); }
  DType kv_dtype() const { return kv.value_or(dtype); }
  bool packed() const { return total_q > 0; }
  bool paged() const { return page > 0; }
  bool has_text() const { return !mask_mod.empty() || !score_mod.empty(); }
  bool plain_logits() const { return softcap == 0 && !alibi && !bias && !sink && !has_text(); }
  // Is nothing done to scores and probabilities but to mask them?
  bool plain() const { return plain_logits() && dropout == 0; }
  // As memory has it: of a packed problem all sequences are one.
  std::int64_t batches() const { return packed() ? 1 : b; }
  std::int64_t q_rows() const { return packed() ? total_q : sq; }
  // Of k and v: of a paged problem, whose batches are its pages, the rows of one.
  std::int64_t k_batches() const { return paged() ? total_k / page : batches(); }
  std::int64_t k_rows() const { return paged() ? page : packed() ? total_k : sk; }
  // Columns of the block table that are looked at.
  std::int64_t table_columns() const { return paged() ? (sk + page - 1) / page : 0; }

  double softmax_scale() const;
  Strides q() const;
  Strides k() const;
  Strides v() const;
  Strides o() const;

  friend bool operator==(const Problem&, const Problem&) = default;
};

// Elements that a tensor with these strides spans in memory: the least buffer size.
DFA_API std::int64_t extent(const Strides& strides, std::int64_t b, std::int64_t h, std::int64_t s,
                            std::int64_t d);

// The problem line: `PASS DTYPE [MASK] bN hqN hkN sqN skN dN [dvN] [window(L,R)] [chunk(N)]
// [prefix(P)] [deterministic] [scale(X)] [softcap(X)] [alibi]` `[bias(b|1,h|1[,q|1,k|1][,DTYPE])]
// [sink] [dropout(P,SEED)] [blocks(…)] [mask_mod(TEXT)] [score_mod(TEXT)] [page(N)]` `[kv(e4m3)]
// [descale_rows(N)] [num_splits(N)] [batch_invariant] [layout(bshd)] [strides_q(B,H,R)] …`.
// Shorthands on input: hN, sN. Packed, in the place of b, sq and sk `lens(N,N,…) [lens_k(N,N,…)]`,
// or beside them `packed(TOTAL_Q,TOTAL_K)` where the lengths are not known; lens(zipf,N,SEED) draws
// N of them, 16 to 2048, short ones more often. Paged, `page(N)` beside either: total_k is of whole
// pages, as many as hold lens_k(…), or b times sk where q is dense, [b, sq, hq, d].
// blocks(random,DENSITY,SEED[,QxK][,b][,h][,partial]) draws so many of the blocks of Q queries and
// K keys, 128x128, for each batch and each head where these are named, and half of them with
// bitmaps where `partial` is; blocks(FILE) reads them; blocks(QxK[,b][,h][,partial]) leaves the
// lists to the pointers. Throws InvalidArgument naming the token and what would be accepted; the
// result is validated.
DFA_API Problem parse_problem(std::string_view line);

// Canonical form: parse_problem(to_line(p)) == p.
DFA_API std::string to_line(const Problem& problem);

// The mask with sides that reach every key there can be (2^41 and more: sizes are at most 2^40) as
// -1, no limit. parse_problem and plan put masks so: larger sides would overflow in arithmetic.
DFA_API Mask within_reach(Mask mask);

// Throws InvalidArgument when sizes, strides or flags cannot describe an attention problem.
DFA_API void validate(const Problem& problem);

}  // namespace dfa
