#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/user_text.h"
#include "dfa/mask.h"
#include "spec/config.h"
#include "spec/dropout.h"

// What one instruction-set level implements. An engine knows tiles, packing and arithmetic; it
// knows nothing of batches, heads, threads or allocation: the driver (backend.cpp) owns those. All
// structs are plain, so that the ISA files, compiled with their own flags, need no library header.
//
// Life of a forward call:   pack_kv once per (b, hk) → forward_tile per (b, hq, query block)
// Life of a backward call:  pack_kv per (b, hk), pack_q per (b, hq) → backward_tile per (b, hk,
//                           range of keys), all query heads of the group in it → finish_dq per
//                           (b, hq)
namespace dfa::cpu {

// Sizes and constants of one head, the same for every head of a problem.
struct HeadShape {
  std::int64_t sq, sk;
  int d, dv;
  Mask mask;
  float scale;                              // multiplies q k^T
  std::int64_t q_row, k_row, v_row, o_row;  // row strides in elements
  float softcap = 0;                        // as in Problem, likewise below
  bool alibi = false;
  bool bias = false;
  bool mask_text = false;
  bool score_text = false;
  DropoutDraw dropout{};
  const UserText* text = nullptr;  // where one of the two is on

  bool transforms() const { return softcap != 0 || alibi || bias || score_text; }
  // Does a part of a logit's gradient not go to scale * score?
  bool chains() const { return softcap != 0 || score_text; }
  // What multiplies scores, as they come or transformed, in exponents.
  float exponent_scale() const { return transforms() ? 1.0f : scale; }
};

// What is added to the logits of one head, or of the query heads of a group: values in the element
// type, and their gradients in fp32, where they are wanted. Steps in elements; 0: one value for
// all.
struct HeadBias {
  const std::byte* values = nullptr;  // null: no bias
  DType type = DType::fp32;
  std::int64_t head = 0, row = 0, key = 0;
  float* gradients = nullptr;  // added to; keys as above
  std::int64_t gradient_head = 0, gradient_row = 0;
};

// Which blocks of one query head there are (Problem::blocks).
struct HeadBlocks {
  const std::int32_t* states = nullptr;  // [rows, columns] as of states_of_head(); null: no lists
  std::int64_t block_q = 0, block_k = 0, columns = 0;
  const std::uint32_t* bits = nullptr;  // of bitmaps
  std::int64_t row_words = 0;
};

// What elements of 8 bits are multiplied by, of one (b, hk).
struct RowFactors {
  const float* values = nullptr;  // null: 1
  std::int64_t rows = 0;          // that share one; 0: all
  std::int64_t step = 0;          // elements from one block's to the next's
};

// Keys and values of one (b, hk), for packing keys [key_begin, key_end). key_begin is a multiple of
// block_k; key_end too, or sk. Every byte of the packed blocks is written: tails are zero. k and v
// begin with key `first`, a multiple of block_k.
struct PackKv {
  const void* k;
  const void* v;
  std::byte* packed;
  std::int64_t key_begin, key_end;
  std::int64_t first = 0;
  RowFactors k_factors{}, v_factors{};
};

// Query rows [q_begin, q_end) of one (b, hq), at most block_q of them; any number where the engine
// has long_tiles.
struct ForwardTile {
  const void* q;            // the head's first row
  void* o;                  // the head's first row
  float* lse;               // the head's first row, or null
  const std::byte* packed;  // of the (b, hk) that this head reads
  std::byte* scratch;       // forward_scratch_bytes, private to the caller's thread
  std::int64_t q_begin, q_end;
  float slope = 0;  // of alibi
  HeadBias bias{};
  float sink = -__builtin_inff();  // none
  std::uint32_t head = 0;          // its number, all batches' counted: of dropout
  HeadBlocks blocks{};
  TextHead text{};
  RowFactors q_factors{};
};

// Queries, do, o and lse of one (b, hq), for packing rows [q_begin, q_end); also computes
// delta = rowsum(do * o). q_begin is a multiple of block_q; q_end too, or sq.
struct PackQ {
  const void* q;
  const void* o;
  const void* d_o;
  const float* lse;
  std::byte* packed;
  std::int64_t q_begin, q_end;
};

// Keys [key_begin, key_end) of one (b, hk): dk and dv of those keys, summed over the query heads of
// the group in order, and those keys' share of dq for each of these heads. The engine sets every
// element of its dq sums (they arrive uninitialised).
struct BackwardTile {
  const std::byte* packed_kv;
  const std::byte* packed_q;    // of the group's first query head
  std::size_t packed_q_stride;  // bytes from one query head of the group to the next
  float* dq_sums;               // of the group's first query head
  std::size_t dq_sums_stride;   // floats from one query head of the group to the next
  int group;                    // hq / hk
  void* dk;                     // the (b, hk)'s first row
  void* dv;
  std::byte* scratch;
  std::int64_t key_begin, key_end;
  const float* slopes = nullptr;       // of alibi, of the group's query heads
  HeadBias bias{};                     // of the group's first query head
  std::uint32_t head = 0;              // likewise, its number
  const HeadBlocks* blocks = nullptr;  // of the group's query heads, or null
  TextHead text{};                     // the group's first
};

// Sums the shares of `splits` key ranges in order, scales, rounds, stores rows [q_begin, q_end).
struct FinishDq {
  const float* dq_sums;
  std::size_t split_stride;  // floats from one key range's share to the next
  int splits;
  void* dq;  // the head's first row
  std::int64_t q_begin, q_end;
};

struct Engine {
  Target target;
  bool long_tiles = false;  // a forward tile costs less, and no more scratch, the more rows it has

  // Bytes, all multiples of 64; the shape gives sq, sk, d, dv.
  std::size_t (*packed_kv_bytes)(const ForwardConfig&, const HeadShape&);
  std::size_t (*forward_scratch_bytes)(const ForwardConfig&, const HeadShape&);
  void (*pack_kv)(const ForwardConfig&, const HeadShape&, const PackKv&);
  void (*forward_tile)(const ForwardConfig&, const HeadShape&, const ForwardTile&);

  std::size_t (*backward_packed_kv_bytes)(const BackwardConfig&, const HeadShape&);
  std::size_t (*packed_q_bytes)(const BackwardConfig&, const HeadShape&);
  std::size_t (*dq_sums_floats)(const BackwardConfig&, const HeadShape&);
  std::size_t (*backward_scratch_bytes)(const BackwardConfig&, const HeadShape&);
  void (*backward_pack_kv)(const BackwardConfig&, const HeadShape&, const PackKv&);
  void (*pack_q)(const BackwardConfig&, const HeadShape&, const PackQ&);
  void (*backward_tile)(const BackwardConfig&, const HeadShape&, const BackwardTile&);
  void (*finish_dq)(const BackwardConfig&, const HeadShape&, const FinishDq&);
};

// One per ISA file. They may be called only where cpuid.h says so.
const Engine& portable_engine();
const Engine& avx2_engine();
const Engine& avx512_engine();
const Engine& amx_engine();

}  // namespace dfa::cpu
