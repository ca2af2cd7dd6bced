#pragma once

namespace dfa {

// Where a number was measured: the card, the file of results/ and the commit that it says, or that
// brought it (results/index.csv).
struct Source {
  const char *card, *file, *commit;
};

inline constexpr Source kNotRecorded{"not recorded", "not recorded", "not recorded"};

// A number that configurations are chosen by. It stands for its value.
template <typename Value>
struct Price {
  const char* what;
  Value value;
  const char* unit;
  Source source;

  constexpr operator Value() const { return value; }
};

}  // namespace dfa
