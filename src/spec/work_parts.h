#pragma once

// Works of pairs that stay (BackwardConfig::split_q): those that do not fill a last round, or
// under a mask the first and longest where they are few, are in parts of their queries, so that no
// pair ends much later than the others. Whoever ends last of a work's parts adds up what they have
// (kernels/backward/sm90_work_parts.cuh).
namespace dfa {

struct WorkParts {
  int first, end;  // works, from the first on, that several pairs walk the queries of
  int parts;       // that each of them is in, or 1

  // What pairs take: as many as there are of so many works, and of the n-th its work and which part
  // of it, from 1 on, or 0 where it is whole.
  constexpr int count(int works) const { return works + (end - first) * (parts - 1); }
  constexpr int work(int n) const {
    if (n < first) return n;
    return is_part(n) ? first + (n - first) / parts : n - (end - first) * (parts - 1);
  }
  constexpr int part(int n) const { return is_part(n) ? 1 + (n - first) % parts : 0; }
  constexpr bool is_part(int n) const { return n >= first && n - first < (end - first) * parts; }

  // Where a part's tiles of so many begin, and that before it ends.
  constexpr int begin(int part, int tiles) const { return (part - 1) * tiles / parts; }
};

// Places for what parts have, and works that may be in parts: at most so many.
inline constexpr int kPartPlaces = 132, kWorksInParts = 66;
// Each warp of a pair counts for itself which of a work's parts have ended.
inline constexpr int kPartCounters = kWorksInParts * 16;

}  // namespace dfa
