#pragma once

namespace dfa {

// Which keys a query sees. Query i stands at position i + sk - sq (bottom-right), key j at j.
//
// A window: the keys from `left` before to `right` after the query's position; -1 means no limit on
// that side. full = {-1, -1}, causal = {-1, 0}, a sliding window of L back = {L, 0}.
// A chunk, beside it: of those only keys of the query's own chunk, positions c N to (c + 1) N - 1
// for some c; 0: none. Queries before position 0 are in a chunk of no keys.
// A prefix, of a causal mask alone: the keys 0 to P - 1 as well, whatever the query; 0: none.
//
// In each the keys of a query follow each other, and neither end moves back from one query to the
// next: tiles go by these ends.
struct Mask {
  long long left = -1;
  long long right = -1;
  long long chunk = 0;
  long long prefix = 0;

  constexpr bool is_window() const { return chunk == 0 && prefix == 0; }
  constexpr bool is_full() const { return left < 0 && right < 0 && is_window(); }
  constexpr bool is_causal() const { return left < 0 && right == 0 && is_window(); }

  // First visible key of query i, in [0, sk].
  constexpr long long key_begin(long long i, long long sq, long long sk) const {
    const long long at = i + sk - sq;
    const long long first = left < 0 ? 0 : within(at - left, sk);
    if (chunk == 0) return first;
    const long long of_chunk = within(chunk_begin(at), sk);
    return first > of_chunk ? first : of_chunk;
  }

  // One past the last visible key of query i, in [0, sk]. Not above key_begin: the row is masked
  // out.
  constexpr long long key_end(long long i, long long sq, long long sk) const {
    const long long at = i + sk - sq;
    const long long end = right < 0 ? sk : within(at + right + 1, sk);
    if (prefix > 0) {
      const long long of_prefix = within(prefix, sk);
      return end > of_prefix ? end : of_prefix;
    }
    if (chunk == 0) return end;
    const long long of_chunk = within(chunk_begin(at) + chunk, sk);
    return end < of_chunk ? end : of_chunk;
  }

  // First query that sees key j, in [0, sq]: the transpose of key_end.
  constexpr long long query_begin(long long j, long long sq, long long sk) const {
    const long long shift = sq - sk;
    if (j < prefix) return 0;
    const long long first = right < 0 ? 0 : within(j + shift - right, sq);
    if (chunk == 0) return first;
    const long long of_chunk = within(chunk_begin(j) + shift, sq);
    return first > of_chunk ? first : of_chunk;
  }

  // One past the last query that sees key j, in [0, sq]: the transpose of key_begin.
  constexpr long long query_end(long long j, long long sq, long long sk) const {
    const long long shift = sq - sk;
    const long long end = left < 0 ? sq : within(j + shift + left + 1, sq);
    if (chunk == 0) return end;
    const long long of_chunk = within(chunk_begin(j) + chunk + shift, sq);
    return end < of_chunk ? end : of_chunk;
  }

  friend constexpr bool operator==(const Mask&, const Mask&) = default;

 private:
  static constexpr long long within(long long x, long long size) {
    return x < 0 ? 0 : (x > size ? size : x);
  }

  // The first position of a position's chunk; division rounds to 0, and these go down.
  constexpr long long chunk_begin(long long at) const {
    return (at >= 0 ? at / chunk : -((chunk - 1 - at) / chunk)) * chunk;
  }
};

inline constexpr Mask kFull{-1, -1};
inline constexpr Mask kCausal{-1, 0};

// Of blocks in lists (Problem::blocks), beside the numbers of bitmaps.
inline constexpr int kFullBlock = -1;
inline constexpr int kAbsentBlock = -2;

// A bias below it hides its key, as -inf does.
inline constexpr float kBiasHides = -1e30f;

}  // namespace dfa
