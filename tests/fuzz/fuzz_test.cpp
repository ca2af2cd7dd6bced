#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iterator>

#include "attention/variants.h"
#include "base/random.h"
#include "plan/select.h"
#include "spec/config_text.h"
#include "spec/limits.h"

namespace dfa {
namespace {

// Seconds of the differential fuzz; more by DFA_FUZZ_SECONDS, another stream by DFA_FUZZ_SEED.
double number_from(const char* name, double fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atof(text);
}

// Draws values from a stream, one after the other.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(random_.below(next_++, static_cast<std::uint64_t>(count)));
  }
  template <typename T, std::size_t N>
  T pick(const T (&values)[N]) {
    return values[static_cast<std::size_t>(below(N))];
  }

 private:
  Random random_;
  std::uint64_t next_ = 0;
};

// What goes beside full or causal; a prefix is of causal alone.
std::string random_mask(Dice& dice, bool causal) {
  std::string mask;
  if (causal && dice.below(6) == 0) return " prefix(" + std::to_string(1 + dice.below(150)) + ")";
  if (dice.below(4) == 0) {
    mask +=
        " window(" + std::to_string(dice.below(80)) + "," + std::to_string(dice.below(80)) + ")";
  }
  if (dice.below(5) == 0) mask += " chunk(" + std::to_string(1 + dice.below(150)) + ")";
  return mask;
}

std::string random_line(Dice& dice) {
  static constexpr int kLengths[] = {1, 2, 7, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200};
  const std::int64_t hk = 1 + dice.below(3);
  std::string line =
      dice.pick({"fwd", "bwd", "fwdbwd"}) + std::string(" ") + dice.pick({"fp32", "fp16", "bf16"}) +
      " " + dice.pick({"full", "causal"}) + " b" + std::to_string(1 + dice.below(2)) + " hq" +
      std::to_string(hk * (1 + dice.below(3))) + " hk" + std::to_string(hk) + " sq" +
      std::to_string(dice.pick(kLengths)) + " sk" + std::to_string(dice.pick(kLengths)) + " d" +
      std::to_string(8 * (1 + dice.below(20))) + " dv" + std::to_string(8 * (1 + dice.below(20)));
  line += random_mask(dice, line.find(" causal") != std::string::npos);
  if (dice.below(4) == 0) line += " layout(bshd)";
  if (dice.below(8) == 0) {
    line += " scale(" + std::to_string(1 + dice.below(200)) + "e-2)";
  } else if (dice.below(16) == 0) {
    line += " scale(" + std::to_string(3 + dice.below(30)) + ")";
  }
  if (dice.below(4) == 0) line += " deterministic";
  return line;
}

// Keys in pages, of packed sequences or of dense queries.
std::string random_paged_line(Dice& dice) {
  static constexpr int kPages[] = {1, 2, 7, 16, 31, 64, 256};
  const std::int64_t hk = 1 + dice.below(3), sequences = 1 + dice.below(4);
  std::string line = std::string("fwd ") + dice.pick({"fp32", "fp16", "bf16"}) + " " +
                     dice.pick({"full", "causal"}) + " hq" +
                     std::to_string(hk * (1 + dice.below(3))) + " hk" + std::to_string(hk) + " d" +
                     std::to_string(8 * (1 + dice.below(20))) + " dv" +
                     std::to_string(8 * (1 + dice.below(20)));
  const int page = dice.pick(kPages);
  if (dice.below(3) == 0) {
    line += " b" + std::to_string(sequences) + " sq" + std::to_string(1 + dice.below(4)) + " sk" +
            std::to_string(1 + dice.below(3 * page));
  } else {
    std::string queries = std::to_string(1 + dice.below(40)),
                keys = std::to_string(1 + dice.below(3 * page));
    for (std::int64_t i = 1; i < sequences; ++i) {
      queries += "," + std::to_string(dice.below(70));
      keys += "," + std::to_string(dice.below(3 * page));
    }
    line += " lens(" + queries + ") lens_k(" + keys + ")";
  }
  line += " page(" + std::to_string(page) + ")";
  line += random_mask(dice, line.find(" causal") != std::string::npos);
  if (dice.below(4) == 0) line += " softcap(20)";
  if (dice.below(4) == 0) line += " alibi";
  if (dice.below(4) == 0) line += " sink";
  return line;
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

TEST(Fuzz, RandomProblemsMeetTheRuleOnEveryVariant) {
  const double seconds = number_from("DFA_FUZZ_SECONDS", 10);
  const auto stream = static_cast<std::uint64_t>(number_from("DFA_FUZZ_SEED", 2026));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t count = 0;
  // The first ones however slow the machine: time is what a busy one has too little of.
  for (; count < 12 || std::chrono::steady_clock::now() < end; ++count) {
    Dice dice(stream + count);
    const std::string line = random_line(dice);
    std::vector<Variant> variants = variants_of(parse_problem(line));
    variants.push_back(random_tiles(parse_problem(line), dice));
    for (Variant& variant : variants) {
      variant.options.threads = static_cast<int>(1 + dice.below(3));
      Tensors t(line, count);
      run(t, variant.options);
      const std::string text = fault(t, variant, count);
      if (!text.empty()) {
        ADD_FAILURE() << text << " --threads " << variant.options.threads;
      }
    }
  }
}

TEST(Fuzz, RandomPagesMeetTheRuleOnEveryVariant) {
  const double seconds = number_from("DFA_FUZZ_SECONDS", 10) / 2;
  const auto stream = static_cast<std::uint64_t>(number_from("DFA_FUZZ_SEED", 2026));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t count = 0;
  for (; count < 12 || std::chrono::steady_clock::now() < end; ++count) {
    Dice dice(stream + count);
    const std::string line = random_paged_line(dice);
    for (Variant& variant : flash_variants_of(parse_problem(line))) {
      variant.options.threads = static_cast<int>(1 + dice.below(3));
      Tensors t(line, count);
      run(t, variant.options);
      const std::string text = fault(t, variant, count);
      if (!text.empty()) {
        ADD_FAILURE() << text << " --threads " << variant.options.threads;
      }
    }
  }
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
    const std::string line =
        mutated(i % 4 == 0 ? random_paged_line(dice) : random_line(dice), dice);
    try {
      const Problem p = parse_problem(line);
      EXPECT_EQ(parse_problem(to_line(p)), p) << line;
      ++parsed;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()).find("problem: "), 0u) << line;
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
