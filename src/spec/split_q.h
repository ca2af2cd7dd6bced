#pragma once

// Work tiles of pairs that stay (BackwardConfig::split_q): those that do not fill a last round, or
// under a mask the first and longest where they are few, are in parts of their queries, so that no
// pair ends much later than the others. Whoever ends last of a work tile's parts adds up what they
// have (kernels/backward/sm90_split_q.cuh).
namespace dfa {

struct SplitQ {
  int first, end;  // work tiles, from the first on, that several pairs walk the queries of
  int parts;       // that each of them is in, or 1

  // What pairs take: as many as there are of so many work tiles, and of the n-th its work tile and
  // which part of it, from 1 on, or 0 where it is whole.
  constexpr int count(int work_tiles) const { return work_tiles + (end - first) * (parts - 1); }
  constexpr int work(int n) const {
    if (n < first) return n;
    return is_part(n) ? first + (n - first) / parts : n - (end - first) * (parts - 1);
  }
  constexpr int part(int n) const { return is_part(n) ? 1 + (n - first) % parts : 0; }
  constexpr bool is_part(int n) const { return n >= first && n - first < (end - first) * parts; }

  // Where a part's tiles of so many begin, and that before it ends.
  constexpr int begin(int part, int tiles) const { return (part - 1) * tiles / parts; }
};

// Places for what parts have, and work tiles that may be in parts: at most so many.
inline constexpr int kPartPlaces = 132, kWorkTilesInParts = 66;
// Each warp of a pair counts for itself which of a work tile's parts have ended.
inline constexpr int kPartCounters = kWorkTilesInParts * 16;

}  // namespace dfa
