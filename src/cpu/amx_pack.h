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
  // 32 columns of `count` rows from row `begin` on. Nearly all pieces are whole: those load
  // plainly.
  template <int count>
  [[gnu::always_inline]] void load(__m512i (&to)[count], int begin = 0) const {
    if (rows >= begin + count && columns >= kUnit) {
      const std::uint16_t* from = first + begin * stride;
      for (int i = 0; i < count; ++i, from += stride) to[i] = _mm512_loadu_si512(from);
    } else {
      for (int i = 0; i < count; ++i) to[i] = row(begin + i);
    }
  }
};

inline void store_tile(std::byte* to, const __m512i (&rows)[16]) {
  for (int i = 0; i < 16; ++i)
    _mm512_store_si512(to + kRowBytes * static_cast<std::size_t>(i), rows[i]);
}

// A tile: 16 rows × 32 columns as they are.
inline void pack_rows(std::byte* to, const Piece& piece) {
  __m512i rows[16];
  piece.load(rows);
  store_tile(to, rows);
}

// B tile of the transpose: 16 rows × 32 columns to [pair of columns][row][2].
inline void pack_transposed(std::byte* to, const Piece& piece) {
  __m512i rows[16];
  piece.load(rows);
  transpose(rows);
  store_tile(to, rows);
}

// Row i of the result: rows 2 i and 2 i + 1, interleaved.
inline void pair_rows(__m512i (&pairs)[16], const Piece& piece) {
  const Piece narrow{piece.first, piece.stride, piece.rows,
                     piece.columns < 16 ? piece.columns : 16};
  for (int i = 0; i < 16; ++i) {
    const __m256i even = _mm512_castsi512_si256(narrow.row(2 * i));
    const __m256i odd = _mm512_castsi512_si256(narrow.row(2 * i + 1));
    pairs[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                               _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
  }
}

// B tile: 32 rows × 16 columns to [pair of rows][column][2], pairs of neighbours.
inline void pack_pairs(std::byte* to, const Piece& piece) {
  __m512i pairs[16];
  pair_rows(pairs, piece);
  store_tile(to, pairs);
}

// A tile of the transpose: 32 rows × 16 columns to [column][32 rows].
inline void pack_columns(std::byte* to, const Piece& piece) {
  __m512i pairs[16];
  pair_rows(pairs, piece);
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
void pack_column_tiles(std::byte* to, const Piece& unit, int width) {
  for (int n = 0; n < units(width); ++n, to += kHalfSquareBytes) {
    pack(to, unit.at(0, kUnit * n));
    pack(to + kTileBytes, unit.at(0, kUnit * n + 16));
  }
}

inline Piece unit_of(const void* head, std::int64_t stride, std::int64_t rows, std::int64_t unit,
                     int width) {
  const Piece whole{static_cast<const std::uint16_t*>(head), stride, rows, width};
  return whole.at(kUnit * unit, 0);
}

// sum + x y in 16 lanes, two of the 32 products each.
inline __m512 add_products(__m512 sum, __m512i x, __m512i y) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                        _mm512_castsi512_ps(_mm512_and_si512(y, high)), sum);
  return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                         _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)), sum);
}

// Row by row of the unit's half: the sum of products of a and b. Rows that are not there give 0.
inline __m512 sums_of_products(const Piece& a, const Piece& b, int half) {
  __m512 rows[16];
  for (int i = 0; i < 16; ++i) {
    rows[i] = _mm512_setzero_ps();
    for (std::int64_t column = 0; column < a.columns; column += kUnit) {
      rows[i] = add_products(rows[i], a.at(0, column).row(16 * half + i),
                             b.at(0, column).row(16 * half + i));
    }
  }
  return sums_of_lanes(rows);
}

// The largest lane; +inf where one is not finite.
inline float largest_or_inf(__m512 values) {
  const __mmask16 bad = _mm512_cmp_ps_mask(values, _mm512_set1_ps(__FLT_MAX__), _CMP_NLE_UQ);
  return bad != 0 ? __builtin_inff() : _mm512_reduce_max_ps(values);
}

// The larger; +inf where one is NaN.
inline __m512 larger(__m512 a, __m512 b) {
  const __mmask16 bad = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
  return _mm512_mask_mov_ps(_mm512_max_ps(a, b), bad, _mm512_set1_ps(__builtin_inff()));
}

// The unit's rows as A tiles [width / 32][16 rows of 2]; returns the largest squared length of a
// row, +inf where one is not finite.
inline float pack_queries(std::byte* to, const Piece& unit, int width) {
  __m512 largest = _mm512_setzero_ps();
  for (int half = 0; half < 2; ++half, to += kTileBytes) {
    __m512 lengths[16];
    for (int i = 0; i < 16; ++i) lengths[i] = _mm512_setzero_ps();
    for (int k = 0; k < units(width); ++k) {
      __m512i rows[16];
      unit.at(16 * half, kUnit * k).load(rows);
      store_tile(to + kHalfSquareBytes * static_cast<std::size_t>(k), rows);
      for (int i = 0; i < 16; ++i) lengths[i] = add_products(lengths[i], rows[i], rows[i]);
    }
    largest = larger(largest, sums_of_lanes(lengths));
  }
  return largest_or_inf(largest);
}

// The unit's rows as B tiles of the transpose [width / 32][16 rows of 2]; returns the same. Turned,
// a row is a lane and its length needs no sum of lanes.
inline float pack_keys(std::byte* to, const Piece& unit, int width) {
  __m512 largest = _mm512_setzero_ps();
  for (int half = 0; half < 2; ++half, to += kTileBytes) {
    __m512 lengths[2] = {};  // of even and odd pairs of columns: half the wait
    for (int k = 0; k < units(width); ++k) {
      __m512i rows[16];
      unit.at(16 * half, kUnit * k).load(rows);
      transpose(rows);
      store_tile(to + kHalfSquareBytes * static_cast<std::size_t>(k), rows);
      for (int i = 0; i < 16; ++i) lengths[i & 1] = add_products(lengths[i & 1], rows[i], rows[i]);
    }
    largest = larger(largest, _mm512_add_ps(lengths[0], lengths[1]));
  }
  return largest_or_inf(largest);
}

// The largest of 16-bit magnitudes, two a lane, as a float; +inf where one is not finite: as
// integers, magnitudes of bf16 have the order of their values, and NaN is above inf.
inline float largest_magnitude(__m512i magnitudes) {
  const __m512i even = _mm512_slli_epi32(magnitudes, 16), odd = _mm512_srli_epi32(magnitudes, 16);
  const auto bits = static_cast<unsigned>(
      _mm512_reduce_max_epu32(_mm512_max_epu32(even, _mm512_slli_epi32(odd, 16))));
  return bits < 0x7f800000u
             ? _mm512_cvtss_f32(_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits))))
             : __builtin_inff();
}

// The unit's rows as B tiles, [pair of rows][column][2], pairs of rows i and 16 + i; two tiles
// every `step` bytes. Returns the largest magnitude.
inline float pack_values(std::byte* to, const Piece& unit, int width, std::size_t step) {
  // Columns 0 to 15 in the low halves of the 128-bit lanes, where the first unpack takes them.
  const __m512i low_halves = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __m512i largest = _mm512_setzero_si512();
  for (int n = 0; n < units(width); ++n, to += step) {
    __m512i even[16], odd[16];
    const Piece piece = unit.at(0, kUnit * n);
    piece.load(even);
    piece.load(odd, 16);
    for (int i = 0; i < 16; ++i) {
      const __m512i a = _mm512_permutexvar_epi64(low_halves, even[i]);
      const __m512i b = _mm512_permutexvar_epi64(low_halves, odd[i]);
      std::byte* row = to + kRowBytes * static_cast<std::size_t>(i);
      _mm512_store_si512(row, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(row + kTileBytes, _mm512_unpackhi_epi16(a, b));
      largest = _mm512_max_epu16(largest, _mm512_and_si512(a, magnitude));
      largest = _mm512_max_epu16(largest, _mm512_and_si512(b, magnitude));
    }
  }
  return largest_magnitude(largest);
}

}  // namespace
}  // namespace dfa::cpu::amx
