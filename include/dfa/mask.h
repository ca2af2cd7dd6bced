#pragma once

namespace dfa {

// Which keys a query sees. Query i is aligned to key i + sk - sq (bottom-right), and sees the keys
// from `left` before to `right` after that point; -1 means no limit on that side.
// full = {-1, -1}, causal = {-1, 0}, a sliding window of L back = {L, 0}.
struct Mask {
  long long left = -1;
  long long right = -1;

  constexpr bool is_full() const { return left < 0 && right < 0; }
  constexpr bool is_causal() const { return left < 0 && right == 0; }

  // First visible key of query i, in [0, sk].
  constexpr long long key_begin(long long i, long long sq, long long sk) const {
    if (left < 0) return 0;
    const long long first = i + sk - sq - left;
    return first < 0 ? 0 : (first > sk ? sk : first);
  }

  // One past the last visible key of query i, in [0, sk]. Not above key_begin: the row is masked
  // out.
  constexpr long long key_end(long long i, long long sq, long long sk) const {
    if (right < 0) return sk;
    const long long end = i + sk - sq + right + 1;
    return end < 0 ? 0 : (end > sk ? sk : end);
  }

  // First query that sees key j, in [0, sq]: the transpose of key_end.
  constexpr long long query_begin(long long j, long long sq, long long sk) const {
    if (right < 0) return 0;
    const long long first = j - sk + sq - right;
    return first < 0 ? 0 : (first > sq ? sq : first);
  }

  // One past the last query that sees key j, in [0, sq]: the transpose of key_begin.
  constexpr long long query_end(long long j, long long sq, long long sk) const {
    if (left < 0) return sq;
    const long long end = j - sk + sq + left + 1;
    return end < 0 ? 0 : (end > sq ? sq : end);
  }

  friend constexpr bool operator==(const Mask&, const Mask&) = default;
};

inline constexpr Mask kFull{-1, -1};
inline constexpr Mask kCausal{-1, 0};

// A bias below it hides its key, as -inf does.
inline constexpr float kBiasHides = -1e30f;

}  // namespace dfa
