#pragma once

#include "cpu/amx_layout.h"
#include "cpu/amx_vector.h"

// The three ways a piece of a bf16 matrix becomes a tile. `rows` and `columns` say how much of the
// piece is there; the rest of the tile is zero.
namespace dfa::cpu::amx {
namespace {

struct Piece {
  const std::uint16_t* first;
  std::int64_t stride;  // elements from one row to the next
  std::int64_t rows, columns;

  Piece at(std::int64_t row, std::int64_t column) const {
    return {first + row * stride + column, stride, rows - row, columns - column};
  }
  __m512i row(std::int64_t index) const {
    return index < rows ? load_row(first + index * stride, columns) : _mm512_setzero_si512();
  }
};

inline void store_tile(std::byte* to, const __m512i (&rows)[16]) {
  for (int i = 0; i < 16; ++i)
    _mm512_store_si512(to + kRowBytes * static_cast<std::size_t>(i), rows[i]);
}

// A tile: 16 rows × 32 columns as they are.
inline void pack_rows(std::byte* to, const Piece& piece) {
  __m512i rows[16];
  for (int i = 0; i < 16; ++i) rows[i] = piece.row(i);
  store_tile(to, rows);
}

// B tile of the transpose: 16 rows × 32 columns to [pair of columns][row][2].
inline void pack_transposed(std::byte* to, const Piece& piece) {
  __m512i rows[16];
  for (int i = 0; i < 16; ++i) rows[i] = piece.row(i);
  transpose(rows);
  store_tile(to, rows);
}

// Row i of the result: rows i * step and i * step + other, interleaved.
inline void pair_rows(__m512i (&pairs)[16], const Piece& piece, int step, int other) {
  const Piece narrow{piece.first, piece.stride, piece.rows,
                     piece.columns < 16 ? piece.columns : 16};
  for (int i = 0; i < 16; ++i) {
    const __m256i even = _mm512_castsi512_si256(narrow.row(i * step));
    const __m256i odd = _mm512_castsi512_si256(narrow.row(i * step + other));
    pairs[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                               _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
  }
}

// B tile: 32 rows × 16 columns to [pair of rows][column][2], pairs of neighbours.
inline void pack_pairs(std::byte* to, const Piece& piece) {
  __m512i pairs[16];
  pair_rows(pairs, piece, 2, 1);
  store_tile(to, pairs);
}

// The same with pairs of rows i and 16 + i.
inline void pack_far_pairs(std::byte* to, const Piece& piece) {
  __m512i pairs[16];
  pair_rows(pairs, piece, 1, 16);
  store_tile(to, pairs);
}

// A tile of the transpose: 32 rows × 16 columns to [column][32 rows].
inline void pack_columns(std::byte* to, const Piece& piece) {
  __m512i pairs[16];
  pair_rows(pairs, piece, 2, 1);
  transpose(pairs);
  store_tile(to, pairs);
}

// The pieces of one unit (32 rows, all columns) in the order of the layouts above.
template <void (*pack)(std::byte*, const Piece&)>
void pack_row_tiles(std::byte* to, const Piece& unit, int width) {
  for (int k = 0; k < units(width); ++k) {
    for (int half = 0; half < 2; ++half, to += kTileBytes) pack(to, unit.at(16 * half, kUnit * k));
  }
}

template <void (*pack)(std::byte*, const Piece&)>
void pack_column_tiles(std::byte* to, const Piece& unit, int width,
                       std::size_t step = kHalfSquareBytes) {
  for (int n = 0; n < units(width); ++n, to += step) {
    pack(to, unit.at(0, kUnit * n));
    pack(to + kTileBytes, unit.at(0, kUnit * n + 16));
  }
}

inline Piece unit_of(const void* head, std::int64_t stride, std::int64_t rows, std::int64_t unit,
                     int width) {
  const Piece whole{static_cast<const std::uint16_t*>(head), stride, rows, width};
  return whole.at(kUnit * unit, 0);
}

// Sixteen partial sums of a row of a times a row of b.
inline __m512 products(const Piece& a, const Piece& b, std::int64_t row) {
  __m512 sum = _mm512_setzero_ps();
  for (std::int64_t column = 0; column < a.columns; column += kUnit) {
    const __m512i x = a.at(0, column).row(row), y = b.at(0, column).row(row);
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                          _mm512_castsi512_ps(_mm512_and_si512(y, high)), sum);
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                          _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)), sum);
  }
  return sum;
}

// Row by row of the unit's half: the sum of products of a and b. Rows that are not there give 0.
inline __m512 sums_of_products(const Piece& a, const Piece& b, int half) {
  __m512i rows[16];
  for (int i = 0; i < 16; ++i) rows[i] = _mm512_castps_si512(products(a, b, 16 * half + i));
  return sums_of_lanes(rows);
}

// Largest squared length of the unit's rows; +inf where one is not finite.
inline float largest_norm2(const Piece& unit) {
  const __m512 low = sums_of_products(unit, unit, 0), high = sums_of_products(unit, unit, 1);
  const __m512 most = _mm512_set1_ps(__FLT_MAX__);
  const unsigned bad = _mm512_cmp_ps_mask(low, most, _CMP_NLE_UQ) |
                       static_cast<unsigned>(_mm512_cmp_ps_mask(high, most, _CMP_NLE_UQ));
  return bad != 0 ? __builtin_inff() : _mm512_reduce_max_ps(_mm512_max_ps(low, high));
}

// Largest magnitude in the unit, +inf where one is not finite: as integers, magnitudes of bf16 have
// the order of their values, and NaN is above inf.
inline float largest_magnitude(const Piece& unit) {
  __m512i largest = _mm512_setzero_si512();
  for (std::int64_t row = 0; row < kUnit && row < unit.rows; ++row) {
    for (std::int64_t column = 0; column < unit.columns; column += kUnit) {
      const __m512i bits = _mm512_and_si512(unit.at(0, column).row(row), _mm512_set1_epi16(0x7fff));
      largest = _mm512_max_epu16(largest, bits);
    }
  }
  const __m512i even = _mm512_slli_epi32(largest, 16), odd = _mm512_srli_epi32(largest, 16);
  const auto bits = static_cast<unsigned>(
      _mm512_reduce_max_epu32(_mm512_max_epu32(even, _mm512_slli_epi32(odd, 16))));
  return bits < 0x7f800000u
             ? _mm512_cvtss_f32(_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits))))
             : __builtin_inff();
}

}  // namespace
}  // namespace dfa::cpu::amx
