#pragma once

#include "kernels/forward/sm90_args.h"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/matrix.cuh"
#include "kernels/ptx/tensor_copy.cuh"
#include "kernels/tile/panel.h"
#include "kernels/tile/tile.cuh"
#include "spec/forward_config.h"

// How the output and lse of sm90_forward leave, and whether they may: a warpgroup's 64 rows, 16 a
// warp.
namespace dfa {

// Those of a tile of q that a warpgroup owns.
template <bool kVarlen>
struct Sm90OutputRows {
  SeqlenInfo<kVarlen> seq;
  int head, first;  // of the tile; a head of `pack_gqa`
  int group;
  int of_warp;  // the first of the 16 of this warp
};

template <ForwardConfig kConfig>
struct Sm90Store {
  static constexpr DType kElement = output_of(kConfig.element);
  static constexpr int kValues = kConfig.value_dim / 8;  // fragments
  static constexpr int kPacked = kConfig.pack_gqa;
  static constexpr int kQueryRows = kConfig.query_rows();
  using Output = float[kValues][4];
  using Rows = Sm90OutputRows<kConfig.varlen>;

  // Of the two that a thread has of its group's rows, from `first` on, is one of a packed head, or
  // left?
  static DFA_DEVICE bool is_of_head(int first, int half) {
    const int warp = static_cast<int>(ptx::kept_thread_index() / 32 % 4);
    const int lane = static_cast<int>(ptx::kept_thread_index() % 32);
    return is_of_head(first + warp * 16 + half * 8 + lane / 4);
  }

  // Did sums, or the output where they are beyond those of a reference that follows, leave the
  // range of fp32? The reciprocal of a sum beyond kMost would be 0.
  static DFA_DEVICE bool left_range(int first, float sums, const Output& output) {
    constexpr float kUsual = 0x1p16f, kMost = 0x1p100f;
    if (sums <= kUsual) return false;
    if (!(sums <= kMost)) return true;
    float zero = 0;
#pragma unroll
    for (int n = 0; n < kValues; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (is_of_head(first, i / 2)) zero = fmaf(output[n][i], 0.f, zero);
      }
    }
    return zero != 0;
  }

  // Of a thread's two rows, of which `row` is the warp's first.
  static DFA_DEVICE void sinks(const KernelArgs& args, int head, int row, float (&sinks)[2]) {
    const int lane = static_cast<int>(ptx::kept_thread_index() % 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = of_head(row + half * 8 + lane / 4);
      sinks[half] = args.logits.sinks[head * kPacked + (at < kPacked ? at : kPacked - 1)];
    }
  }

  static DFA_DEVICE void lse(const KernelArgs& args, const Rows& rows, const float (&lse)[2]) {
    const int lane = static_cast<int>(ptx::kept_thread_index() % 32);
    if (args.lse == nullptr || lane % 4 != 0) return;
    float* head = args.lse + rows.seq.lse_offset(args, rows.head * kPacked);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.of_warp + half * 8 + lane / 4, query = row / kQueryRows;
      if (query < rows.seq.sq(args) && is_of_head(row)) {
        head[of_head(row) * rows.seq.lse_stride(args) + query] = lse[half];
      }
    }
  }

  // Of a piece of a work tile, in fp32, for combine_splits. `first_column` as in straight().
  static DFA_DEVICE void piece(const Sm90ForwardArgs& a, const Rows& rows, int piece,
                               const Output& output, const float (&inverse)[2],
                               const float (&lse)[2], int first_column = 0) {
    const KernelArgs& args = a.args;
    const int lane = static_cast<int>(ptx::kept_thread_index() % 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.of_warp + half * 8 + lane / 4;
      if (row / kQueryRows >= rows.seq.sq(args) || !is_of_head(row)) continue;
      const long long at =
          static_cast<long long>(piece) * a.partials.rows + row % kConfig.work_tile_rows();
      if (lane % 4 == 0) a.partials.lse[at] = lse[half];
      float* const to = a.partials.o + at * args.d_v + first_column + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kValues; ++n) {
        if (first_column + n * 8 >= args.d_v) continue;
        const float* two = output[n] + half * 2;
        *reinterpret_cast<float2*>(to + n * 8) =
            make_float2(two[0] * inverse[half], two[1] * inverse[half]);
      }
    }
  }

  // Of a whole work tile. `q` is where its q was, `places` what an output of its own has.
  static DFA_DEVICE void output(const Sm90ForwardArgs& a, const Rows& rows, unsigned q,
                                unsigned places, const Output& output, const float (&inverse)[2]) {
    if constexpr (kConfig.own_output()) {
      by_halves(a, rows, places, output, inverse);
    } else if constexpr (kConfig.q_stages == 1 || kPacked != kQueryRows) {
      straight(a.args, rows, output, inverse);
    } else {
      through_q(a, rows, q, output, inverse);
    }
  }

  // With one stage of q the next one takes the place of this as soon as the last scores are there,
  // and the output goes straight to memory, as it does where boxes would hold rows of no head.
  // Lanes exchange halves, so that each writes 8 bytes and a row's 32 come together. `first_column`
  // is where this warpgroup's begin, where others have other columns of its rows.
  static DFA_DEVICE void straight(const KernelArgs& args, const Rows& rows, const Output& output,
                                  const float (&inverse)[2], int first_column = 0) {
    const int lane = static_cast<int>(ptx::kept_thread_index() % 32);
    const int odd = lane % 2;
    char* head = static_cast<char*>(args.o) +
                 q_head_offset<kElement>(args, args.o_strides, rows.seq, rows.head * kPacked);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows.of_warp + half * 8 + lane / 4, query = row / kQueryRows;
      char* to = head + bytes_of(kElement) *
                            (query * args.o_strides.row + of_head(row) * args.o_strides.head);
#pragma unroll
      for (int n = 0; n < kValues; n += 2) {
        unsigned pair[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* two = output[n + i] + half * 2;
          pair[i] = ptx::pack<kElement>(two[0] * inverse[half], two[1] * inverse[half]);
        }
        const unsigned got = __shfl_xor_sync(ptx::kWholeWarp, odd ? pair[0] : pair[1], 1);
        const int column = first_column + (n + odd) * 8 + lane % 4 / 2 * 4;
        if (query >= rows.seq.sq(args) || column >= args.d_v || !is_of_head(row)) continue;
        *reinterpret_cast<uint2*>(to + bytes_of(kElement) * column) =
            odd ? make_uint2(got, pair[1]) : make_uint2(pair[0], got);
      }
    }
  }

 private:
  // With two, every warp stores its 16 rows through the part of q that its group has read.
  static DFA_DEVICE void through_q(const Sm90ForwardArgs& a, const Rows& rows, unsigned q,
                                   const Output& output, const float (&inverse)[2]) {
    ptx::sync_warps(8 + rows.group, 128);  // all have read q
    send_panels<0, panels(kConfig.value_dim)>(a, rows, q, output, inverse);
  }

  // With a place of its own for half of it, one half after the other.
  static DFA_DEVICE void by_halves(const Sm90ForwardArgs& a, const Rows& rows, unsigned places,
                                   const Output& output, const float (&inverse)[2]) {
    constexpr int kHalf = panels(kConfig.output_columns());
    const unsigned place = places + rows.group * kHalf * panel_bytes(kGroupRows);
    ptx::wait_stores_read();
    __syncwarp();
    send_panels<0, kHalf>(a, rows, place, output, inverse);
    ptx::wait_stores_read();
    __syncwarp();
    send_panels<kHalf, panels(kConfig.value_dim) - kHalf>(a, rows, place, output, inverse);
  }

  static DFA_DEVICE int of_head(int row) { return row % kQueryRows; }
  static DFA_DEVICE bool is_of_head(int row) {
    return kPacked == kQueryRows || of_head(row) < kPacked;
  }

  // Panels of 64 columns, every warp its 16 rows.
  template <int kFirst, int kCount>
  static DFA_DEVICE void send_panels(const Sm90ForwardArgs& a, const Rows& rows, unsigned place,
                                     const Output& output, const float (&inverse)[2]) {
    constexpr int kEnd = 8 * (kFirst + kCount) < kValues ? 8 * (kFirst + kCount) : kValues;
    const unsigned lane = ptx::kept_thread_index() % 32;
    const unsigned first = ptx::kept_thread_index() / 32 % 4 * 16;
    const unsigned row = first + lane % 16;
    const unsigned row_start = place + row * kPanelRowBytes;
#pragma unroll
    for (int n = 8 * kFirst; n < kEnd; n += 2) {
      const unsigned chunk = n % 8 + lane / 16;
      const unsigned to =
          row_start + (n / 8 - kFirst) * panel_bytes(kGroupRows) + ((chunk ^ row % 8) << 4);
      unsigned rounded[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* two = output[n + i / 2] + i % 2 * 2;
        rounded[i] = ptx::pack<kElement>(two[0] * inverse[i % 2], two[1] * inverse[i % 2]);
      }
      ptx::store_matrices(to, rounded);
    }
    ptx::fence_async();
    __syncwarp();
    if (ptx::elect()) {
#pragma unroll
      for (int panel = 0; panel < kCount; ++panel) {
        const RowOnMap at = row_on_map<kConfig>(
            a.args, rows.seq, rows.first + rows.group * kGroupRows + static_cast<int>(first),
            rows.head);
        ptx::store_box<kConfig.varlen>(
            a.o, place + panel * panel_bytes(kGroupRows) + first * kPanelRowBytes,
            (kFirst + panel) * kPanelColumns, at.second, at.third, rows.seq.q_box_batch());
      }
      ptx::commit_stores();
    }
  }
};

}  // namespace dfa
