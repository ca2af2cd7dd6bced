#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iterator>

#include "attention/variants.h"
#include "plan/select.h"
#include "random_lines.h"
#include "spec/config_names.h"
#include "spec/config_text.h"
#include "spec/limits.h"

namespace dfa {
namespace {

// Seconds of the differential fuzz; more by DFA_FUZZ_SECONDS, another stream by DFA_FUZZ_SEED.
double number_from(const char* name, double fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atof(text);
}

// Legal tiles drawn from the candidates of both passes, on a target drawn with them.
Variant random_tiles(const Problem& p, Dice& dice) {
  const Limits limits{.highest = cpu::highest_target()};
  const std::vector<BackwardConfig> candidates = backward_candidates(p, limits);
  const BackwardConfig c =
      candidates.at(static_cast<std::size_t>(dice.below(std::ssize(candidates))));
  const std::string config = std::string("target=") + name_of(c.target) +
                             ", block_q=" + std::to_string(c.block_q) +
                             ", block_k=" + std::to_string(c.block_k);
  return {config, {.algorithm = Algorithm::flash, .config = config}};
}

// Problems that `draw` makes, by the variants that it names, for `seconds`; the first ones however
// slow the machine: time is what a busy one has too little of.
struct Drawn {
  std::string line;
  std::vector<Variant> variants;
};
template <typename Draw>
void expect_right(double seconds, const Draw& draw) {
  const auto stream = static_cast<std::uint64_t>(number_from("DFA_FUZZ_SEED", 2026));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (std::uint64_t count = 0; count < 12 || std::chrono::steady_clock::now() < end; ++count) {
    Dice dice(stream + count);
    Drawn drawn = draw(dice);
    Truths truths;
    for (Variant& variant : drawn.variants) {
      variant.options.threads = static_cast<int>(1 + dice.below(3));
      Tensors t(drawn.line, count);
      run(t, variant.options);
      const std::string text = fault(t, variant, count, {.truths = &truths});
      if (!text.empty()) {
        ADD_FAILURE() << text << " --threads " << variant.options.threads;
      }
    }
  }
}

double fuzz_seconds() { return number_from("DFA_FUZZ_SECONDS", 10); }

TEST(Fuzz, RandomProblemsMeetTheRuleOnEveryVariant) {
  expect_right(fuzz_seconds(), [](Dice& dice) {
    std::string line = random_line(dice);
    if (dice.below(5) == 0) {
      line += " dropout(0." + std::to_string(1 + dice.below(99)) + "," +
              std::to_string(dice.below(1000)) + ")";
    }
    const bool has_text = dice.below(4) == 0;
    if (has_text) line += random_text(dice);
    const Problem p = parse_problem(line);
    std::vector<Variant> variants = has_text ? flash_variants_of(p) : variants_of(p);
    variants.push_back(random_tiles(p, dice));
    return Drawn{line, variants};
  });
}

TEST(Fuzz, RandomPagesMeetTheRuleOnEveryVariant) {
  expect_right(fuzz_seconds() / 2, [](Dice& dice) {
    const std::string line = random_paged_line(dice);
    return Drawn{line, flash_variants_of(parse_problem(line))};
  });
}

TEST(Fuzz, RandomBlocksMeetTheRuleOnEveryVariant) {
  expect_right(fuzz_seconds() / 2, [](Dice& dice) {
    const std::string line = random_blocks_line(dice);
    std::vector<Variant> variants = flash_variants_of(parse_problem(line));
    variants.push_back(random_tiles(parse_problem(line), dice));
    return Drawn{line, variants};
  });
}

// One or a few bytes changed, removed or doubled.
std::string mutated(std::string text, Dice& dice) {
  static constexpr char kBytes[] = "0123456789 bhskqdv(),.-=:{}xNfp\t\n\xff";
  for (std::int64_t n = 1 + dice.below(4); n > 0 && !text.empty(); --n) {
    const auto at = static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(text.size())));
    switch (dice.below(3)) {
      case 0: text[at] = dice.pick(kBytes); break;
      case 1: text.erase(at, 1); break;
      default: text.insert(at, text, at / 2, 5);
    }
  }
  return text;
}

TEST(Fuzz, DamagedProblemLinesParseToAFixedPointOrAreRefused) {
  int parsed = 0, refused = 0;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    Dice dice(i);
    const std::string line = mutated(i % 4 == 0   ? random_paged_line(dice)
                                     : i % 4 == 1 ? random_blocks_line(dice)
                                     : i % 4 == 2 ? random_line(dice) + random_text(dice)
                                                  : random_line(dice),
                                     dice);
    try {
      const Problem p = parse_problem(line);
      EXPECT_EQ(parse_problem(to_line(p)), p) << line;
      ++parsed;
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      const std::string place = text.substr(0, text.find(':'));
      EXPECT_TRUE(place == "problem" || place == "mask_mod" || place == "score_mod") << line;
      EXPECT_EQ(text.find('\n'), std::string::npos) << line;
      ++refused;
    }
  }
  EXPECT_GT(parsed, 100);
  EXPECT_GT(refused, 100);
}

TEST(Fuzz, DamagedConfigurationsParseToAFixedPointOrAreRefused) {
  int parsed = 0, refused = 0;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    Dice dice(i);
    const std::string text = mutated(to_text(ForwardConfig{}), dice);
    try {
      const ForwardConfig config = parse_config(text, ForwardConfig{});
      EXPECT_EQ(parse_config(to_text(config), ForwardConfig{}), config) << text;
      ++parsed;
    } catch (const InvalidArgument&) {
      ++refused;
    }
  }
  EXPECT_GT(parsed, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace dfa
