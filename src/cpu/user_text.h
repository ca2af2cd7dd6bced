#pragma once

#include <cstdint>

// A problem's mask_mod and score_mod for a row of a tile at a time (docs/design/0036-user-text.md).
// Engines call these out of line: they are compiled once, for every processor.
namespace dfa::cpu {

class UserText;

// Query head h of batch b.
struct TextHead {
  std::int64_t b = 0, h = 0;
};

// One of its queries, and the first of the keys behind one another.
struct TextRow {
  TextHead head;
  std::int64_t query, key;
};

// `count` scores, which are scale * q k^T, become what score_mod makes of them, -inf where that
// hides the key, and `derivatives`, if not null, what of a logit's gradient goes to them.
void transform_by_text(const UserText& text, const TextRow& row, float* scores, int count,
                       float* derivatives);

// shown[i] is 1 where the query sees the key, else 0. Is there one that it sees?
bool show_by_text(const UserText& text, const TextRow& row, std::uint8_t* shown, int count);

}  // namespace dfa::cpu
