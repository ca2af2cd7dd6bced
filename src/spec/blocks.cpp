#include "spec/blocks.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/random.h"
#include "dfa/error.h"
#include "spec/parse.h"
#include "spec/problem_rules.h"

namespace dfa {
namespace {

constexpr std::int64_t kMostSide = 1 << 20;    // of a block
constexpr std::int64_t kMostStates = 1 << 24;  // that a line may say
constexpr std::string_view kSigns = ".X/?";    // of kAbsentBlock, kFullBlock, bitmap 0, bitmap 1
constexpr std::uint64_t kBitmapSeed = 20260048;

std::string call_text(std::string_view text) { return "'blocks(" + std::string(text) + ")'"; }

// Of "128x64".
bool take_sides(std::string_view text, BlockMask& blocks) {
  const std::size_t cross = text.find('x');
  if (cross == std::string_view::npos) return false;
  const auto q = to_integer(text.substr(0, cross)), k = to_integer(text.substr(cross + 1));
  if (!q || !k) return false;
  blocks.block_q = *q;
  blocks.block_k = *k;
  return true;
}

// What may stand behind: b, h, partial.
bool take_word(std::string_view word, BlockMask& blocks) {
  if (word == "b") return blocks.of_batch = true;
  if (word == "h") return blocks.of_head = true;
  if (word == "partial") return blocks.bitmaps = true;
  return false;
}

std::string words_text(const BlockMask& blocks) {
  return std::string(blocks.of_batch ? ",b" : "") + (blocks.of_head ? ",h" : "") +
         (blocks.bitmaps ? ",partial" : "");
}

std::string sides_text(const BlockMask& blocks) {
  return std::to_string(blocks.block_q) + "x" + std::to_string(blocks.block_k);
}

void require_sides(const BlockMask& blocks) {
  for (const std::int64_t side : {blocks.block_q, blocks.block_k}) {
    if (side >= 16 && side <= kMostSide && side % 16 == 0) continue;
    problem_rules::bad("blocks of " + sides_text(blocks) +
                       "; sides are multiples of 16 from 16 to 2^20");
  }
}

struct Draw {
  double density;
  std::uint64_t seed;
};

std::optional<Draw> draw_of(std::string_view density, std::string_view seed) {
  const auto share = to_number<double>(density);
  const auto number = to_number<std::uint64_t>(seed);
  if (!share || !(*share >= 0 && *share <= 1) || !number) return std::nullopt;
  return Draw{*share, *number};
}

BlockMask random_blocks(std::string_view text, const std::vector<std::string_view>& parts) {
  BlockMask blocks;
  const auto draw = parts.size() < 3 ? std::nullopt : draw_of(parts[1], parts[2]);
  bool right = draw.has_value();
  for (std::size_t i = 3; right && i < parts.size(); ++i) {
    right = (i == 3 && take_sides(parts[i], blocks)) || take_word(parts[i], blocks);
  }
  if (!right) {
    problem_rules::bad(
        call_text(text) +
        " is not of the form blocks(random,DENSITY,SEED[,QxK][,b][,h][,partial]), DENSITY from 0 "
        "to 1");
  }
  const BlockMask usual;
  const bool sides = blocks.block_q != usual.block_q || blocks.block_k != usual.block_k;
  blocks.source = "random," + shortest(draw->density) + "," + std::to_string(draw->seed) +
                  (sides ? "," + sides_text(blocks) : "") + words_text(blocks);
  return blocks;
}

// So many of a map's blocks as the density has, to the nearest: those with the least keys.
void draw_map(std::span<std::int32_t> map, const Draw& draw, std::uint64_t first, bool bitmaps) {
  const Random random(draw.seed);
  std::vector<std::pair<std::uint64_t, std::size_t>> keys(map.size());
  for (std::size_t i = 0; i < map.size(); ++i) keys[i] = {random.bits(2 * (first + i)), i};
  const auto count = std::lround(draw.density * static_cast<double>(map.size()));
  std::nth_element(keys.begin(),
                   keys.begin() + std::min<std::ptrdiff_t>(count, std::ssize(keys) - 1),
                   keys.end());
  for (std::ptrdiff_t n = 0; n < count; ++n) {
    const std::size_t i = keys[static_cast<std::size_t>(n)].second;
    const std::uint64_t bits = random.bits(2 * (first + i) + 1);
    map[i] =
        bitmaps && bits % 2 == 1 ? static_cast<std::int32_t>(bits / 2 % kLineBitmaps) : kFullBlock;
  }
}

std::string text_of(const std::string& path) {
  try {
    return read_file(path, kMostText);
  } catch (const IoError& error) {
    problem_rules::bad("blocks(" + path + "): " + error.what() +
                       "; accepted: blocks(random,DENSITY,SEED), blocks(FILE), blocks(QxK)");
  }
}

// A file of pictures, one a map: a line a block of queries, a sign a block of keys.
class Pictures {
 public:
  explicit Pictures(const std::string& path) : path_(path), text_(text_of(path)) {
    for (std::size_t number = 1; !text_.empty() && begin_ <= text_.size(); ++number) {
      const std::size_t end = std::min(text_.find('\n', begin_), text_.size());
      std::string_view line(text_.data() + begin_, end - begin_);
      begin_ = end + 1;
      if (const auto comment = line.find('#'); comment != std::string_view::npos)
        line = line.substr(0, comment);
      const auto words = split(line, " \t\r");
      if (words.empty()) continue;
      if (sides_.empty()) {
        sides_ = words;
      } else if (words.size() == 1) {
        lines_.push_back({words[0], number});
      } else {
        problem_rules::bad(at(number) + "a line has one word, a sign a block of keys");
      }
    }
  }

  BlockMask header() const {
    BlockMask blocks;
    bool right = !sides_.empty() && take_sides(sides_[0], blocks);
    for (std::size_t i = 1; right && i < sides_.size(); ++i) right = take_word(sides_[i], blocks);
    if (!right) problem_rules::bad(place() + "the first line is not of the form QxK [b] [h]");
    return blocks;
  }

  void read(std::vector<std::int32_t>& states, std::int64_t rows, std::int64_t columns) const {
    const auto maps = std::ssize(states) / (rows * columns);
    if (std::ssize(lines_) != maps * rows) {
      problem_rules::bad(place() + std::to_string(lines_.size()) +
                         " lines of blocks; this problem takes " + std::to_string(rows) +
                         " for each of " + std::to_string(maps) + " maps");
    }
    auto state = states.begin();
    for (const auto& [line, number] : lines_) {
      if (std::ssize(line) != columns) {
        problem_rules::bad(at(number) + std::to_string(line.size()) +
                           " blocks of keys; this problem takes " + std::to_string(columns));
      }
      for (const char sign : line) {
        const std::size_t kind = kSigns.find(sign);
        if (kind == std::string_view::npos) {
          problem_rules::bad(at(number) +
                             "a sign that is none of '.' absent, 'X' full, '/' keys up to the "
                             "query, '?' drawn pairs");
        }
        *state++ = static_cast<std::int32_t>(kind) + kAbsentBlock;
      }
    }
  }

 private:
  std::string place() const { return "blocks(" + path_ + "): "; }
  std::string at(std::size_t number) const {
    return "blocks(" + path_ + "), line " + std::to_string(number) + ": ";
  }

  struct Line {
    std::string_view text;
    std::size_t number;
  };

  std::string path_, text_;
  std::size_t begin_ = 0;
  std::vector<std::string_view> sides_;
  std::vector<Line> lines_;
};

// Pairs of a block that a bitmap and the mask show, of the queries [first, end) and keys [key, …).
double pairs_of_block(const Problem& p, std::int32_t state, std::int64_t row, std::int64_t column,
                      const std::vector<std::uint32_t>& bits) {
  const BlockMask& blocks = *p.blocks;
  const std::int64_t first = row * blocks.block_q, key = column * blocks.block_k;
  const std::int64_t end = std::min(first + blocks.block_q, p.sq);
  const std::int64_t keys_end = std::min(key + blocks.block_k, p.sk);
  if (state == kFullBlock && p.mask.is_full()) {
    return static_cast<double>(end - first) * static_cast<double>(keys_end - key);
  }
  double pairs = 0;
  for (std::int64_t i = first; i < end; ++i) {
    const std::int64_t from = std::max<std::int64_t>(p.mask.key_begin(i, p.sq, p.sk), key);
    const std::int64_t to = std::min<std::int64_t>(p.mask.key_end(i, p.sq, p.sk), keys_end);
    if (state == kFullBlock) {
      pairs += static_cast<double>(std::max<std::int64_t>(0, to - from));
      continue;
    }
    const std::uint32_t* words = bits.data() + (i - first) * blocks.row_words();
    for (std::int64_t j = from; j < to; ++j) {
      pairs += words[(j - key) / 32] >> ((j - key) % 32) & 1U;
    }
  }
  return pairs;
}

}  // namespace

BlockMask block_mask_of(std::string_view text) {
  const auto parts = between_commas(text);
  BlockMask blocks;
  if (!parts.empty() && parts[0] == "random") {
    blocks = random_blocks(text, parts);
  } else if (!parts.empty() && take_sides(parts[0], blocks)) {
    for (std::size_t i = 1; i < parts.size(); ++i) {
      if (!take_word(parts[i], blocks)) {
        problem_rules::bad(call_text(text) + " is not of the form blocks(QxK[,b][,h][,partial])");
      }
    }
  } else {
    if (text.empty()) {
      problem_rules::bad(
          "blocks() says nothing; accepted: blocks(random,DENSITY,SEED), blocks(FILE), "
          "blocks(QxK)");
    }
    blocks = Pictures(std::string(text)).header();
    blocks.source = text;
  }
  require_sides(blocks);
  return blocks;
}

std::string block_mask_text(const BlockMask& blocks) {
  return blocks.source.empty() ? sides_text(blocks) + words_text(blocks) : blocks.source;
}

std::int64_t block_maps(const Problem& p) {
  return (p.blocks->of_batch ? p.b : 1) * (p.blocks->of_head ? p.hq : 1);
}

void fill_states(Problem& p) {
  BlockMask& blocks = *p.blocks;
  if (blocks.source.empty()) return;
  const std::int64_t rows = blocks.rows(p.sq), columns = blocks.columns(p.sk);
  if (p.sq < 1 || p.sk < 1 || p.b < 1 || p.hq < 1) return;  // validate() says which
  if (rows > kMostStates / columns || block_maps(p) > kMostStates / (rows * columns)) {
    problem_rules::bad("blocks(" + blocks.source +
                       ") are more than 2^24 blocks; accepted: larger ones");
  }
  const std::int64_t map = rows * columns;
  blocks.states.assign(static_cast<std::size_t>(block_maps(p) * map), kAbsentBlock);
  const auto parts = between_commas(blocks.source);
  if (parts[0] != "random") {
    Pictures(blocks.source).read(blocks.states, rows, columns);
    blocks.bitmaps = std::ranges::any_of(blocks.states, [](std::int32_t s) { return s >= 0; });
    return;
  }
  const std::optional<Draw> draw = draw_of(parts[1], parts[2]);
  for (std::int64_t first = 0; first < std::ssize(blocks.states); first += map) {
    draw_map(std::span(blocks.states)
                 .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(map)),
             draw.value(), static_cast<std::uint64_t>(first), blocks.bitmaps);
  }
}

void require_blocks(const Problem& p) {
  const BlockMask& blocks = *p.blocks;
  require_sides(blocks);
  if (p.packed())
    problem_rules::bad("blocks(…) are of dense problems; leave lens(…), packed(…) or page(…) out");
  const std::int64_t map = blocks.rows(p.sq) * blocks.columns(p.sk);
  if (blocks.states.empty() && blocks.source.empty()) return;
  if (std::ssize(blocks.states) != block_maps(p) * map) {
    problem_rules::bad("blocks(" + blocks.source + ") has states of " +
                       std::to_string(blocks.states.size()) + " blocks; this problem has " +
                       std::to_string(block_maps(p) * map));
  }
}

std::vector<std::uint32_t> line_bitmap(const BlockMask& blocks, std::int32_t number) {
  constexpr Random drawn(kBitmapSeed);
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(blocks.bitmap_words()));
  for (std::int64_t i = 0; i < blocks.block_q; ++i) {
    for (std::int64_t j = 0; j < blocks.block_k; ++j) {
      const auto pair = static_cast<std::uint64_t>(i * blocks.block_k + j);
      const bool seen =
          number == 0 ? j * blocks.block_q <= i * blocks.block_k : drawn.bits(pair) % 2 == 1;
      if (seen) bits[static_cast<std::size_t>(i * blocks.row_words() + j / 32)] |= 1U << (j % 32);
    }
  }
  return bits;
}

double pairs_of_blocks(const Problem& p) {
  const BlockMask& blocks = *p.blocks;
  if (blocks.states.empty()) return 0;
  std::vector<std::vector<std::uint32_t>> bits;
  for (std::int32_t n = 0; blocks.bitmaps && n < kLineBitmaps; ++n) {
    bits.push_back(line_bitmap(blocks, n));
  }
  const std::vector<std::uint32_t> none;
  const std::int64_t rows = blocks.rows(p.sq), columns = blocks.columns(p.sk);
  double pairs = 0;
  for (std::int64_t n = 0; n < std::ssize(blocks.states); ++n) {
    const std::int32_t state = blocks.states[static_cast<std::size_t>(n)];
    if (state == kAbsentBlock) continue;
    const bool whole = state == kFullBlock;
    pairs += pairs_of_block(p, state, n / columns % rows, n % columns,
                            whole ? none : bits.at(static_cast<std::size_t>(state)));
  }
  return pairs / static_cast<double>(block_maps(p));
}

}  // namespace dfa
