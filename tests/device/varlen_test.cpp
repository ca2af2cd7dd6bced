// Sequences as they come, on a real device: packed ones, keys in pages, and logits that are not
// plain.
#include "device/device_case.h"
#include "plan/select.h"
#include "plan/select_split_kv.h"
#include "random_lines.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

class Varlen : public DeviceTest {};

TEST_F(Varlen, EverySequenceMeetsTheRule) {
  EXPECT_EQ(dfa::ran_of({"varlen.txt"}, {.backend = "cuda"}), lines_of("varlen.txt"));
}

TEST_F(Varlen, EverySequenceMeetsTheRuleOnPortableKernels) {
  const PlanOptions portable{.backend = "cuda", .config = "target=cuda_sm80"};
  EXPECT_EQ(dfa::ran_of({"varlen.txt"}, portable), lines_of("varlen.txt"));
}

TEST_F(Varlen, RandomListsMeetTheRule) {
  fuzz({"bf16"}, [](const std::string&, std::uint64_t seed) {
    Dice dice(seed);
    return dfa::checked(random_packed_line(dice, false), seed, {.backend = "cuda"});
  });
}

TEST_F(Varlen, RandomListsMeetTheRuleOnEveryConfiguration) {
  fuzz({"bf16"}, [](const std::string&, std::uint64_t seed) {
    Dice dice(1000 + seed);
    const std::string line = random_packed_line(dice, false);
    const Problem p = parse_problem(line);
    std::vector<std::string> texts;
    if (has_backward(p)) {
      for (const BackwardConfig& c : gpu_candidates<BackwardConfig>(p, cuda().limits()))
        texts.push_back(to_text(c));
    } else {
      for (const ForwardConfig& c : gpu_candidates<ForwardConfig>(p, cuda().limits()))
        texts.push_back(to_text(c));
    }
    const std::string config = texts.at(static_cast<std::size_t>(dice.below(std::ssize(texts))));
    return dfa::checked(line, seed, {.backend = "cuda", .config = config});
  });
}

TEST_F(Varlen, DrawnLengthsOfTwoPowersOfTenMeetTheRule) {
  for (int seed = 4; seed <= 6; ++seed) {
    const std::string lens = " lens(zipf,65," + std::to_string(96 + seed) + ")";
    EXPECT_TRUE(dfa::checked("fwdbwd bf16 causal hq2 hk1 d128" + lens, 1, {.backend = "cuda"}));
    EXPECT_TRUE(dfa::checked("fwdbwd bf16 causal hq2 hk2 d64" + lens, 2, {.backend = "cuda"}));
  }
}

class Logits : public DeviceTest {};

TEST_F(Logits, EveryProblemMeetsTheRule) {
  for (const std::string& line : problem_lines("logits.txt")) {
    const Problem p = parse_problem(line);
    const bool whole = !p.bias || (p.bias->of_query && p.bias->of_key);
    if (!has_backward(p) || whole) {
      EXPECT_TRUE(dfa::checked(line, 1, {.backend = "cuda"}));
    } else {  // a bias of fewer: its gradient is the caller's to sum
      measure::ProblemBuffers buffers(p, "cuda", 5);
      EXPECT_THROW(buffers.run(measure::prepare(p, {.backend = "cuda"})), Unsupported) << line;
    }
  }
}

TEST_F(Logits, RandomListsMeetTheRule) {
  fuzz({"bf16"}, [](const std::string&, std::uint64_t seed) {
    Dice dice(seed);
    return dfa::checked(random_packed_line(dice, true), seed, {.backend = "cuda"});
  });
}

class Masks : public DeviceTest {};

TEST_F(Masks, EveryProblemMeetsTheRule) {
  EXPECT_EQ(dfa::ran_of({"masks.txt"}, {.backend = "cuda"}), lines_of("masks.txt"));
}

class Paged : public DeviceTest {};

TEST_F(Paged, EveryProblemMeetsTheRule) {
  EXPECT_EQ(dfa::ran_of({"paged.txt"}, {.backend = "cuda"}), lines_of("paged.txt"));
}

TEST_F(Paged, RandomPagesMeetTheRule) {
  fuzz({"bf16"}, [](const std::string&, std::uint64_t seed) {
    Dice dice(seed);
    return dfa::checked(random_paged_line(dice), seed, {.backend = "cuda"});
  });
}

// All but those that a GPU refuses: head dims in steps of 8, or above 256, and q in fp32.
TEST_F(Paged, CachesInE4m3MeetTheRule) {
  std::uint64_t seed = 0;
  for (const std::string& line : problem_lines("e4m3_cache.txt")) {
    const Problem p = parse_problem(line);
    const bool taken =
        bytes_of(p.dtype) == 2 && p.d % 16 == 0 && p.dv % 16 == 0 && std::max(p.d, p.dv) <= 256;
    EXPECT_EQ(dfa::checked(line, ++seed, {.backend = "cuda"}), taken) << line;
  }
}

// By Hopper's own kernel, whether plans take it or not.
class HopperPaged : public HopperDevice {};

TEST_F(HopperPaged, EveryProblemMeetsTheRuleOnEveryConfiguration) {
  int lines = 0;
  for (const std::string& line : problem_lines("paged.txt")) {
    const auto candidates = sm90_candidates(parse_problem(line), cuda().limits());
    lines += candidates.empty() ? 0 : 1;
    for (const ForwardConfig& config : candidates) {
      EXPECT_TRUE(dfa::checked(line, 3, {.backend = "cuda", .config = to_text(config)})) << line;
    }
  }
  EXPECT_GE(lines, 8);
}

TEST_F(HopperPaged, RandomPromptsMeetTheRule) {
  int runs = 0;
  fuzz({"bf16"}, [&](const std::string&, std::uint64_t seed) {
    Dice dice(3000 + seed);
    const auto dim = [&] { return std::to_string(8 * (5 + dice.below(28))); };
    std::string line =
        random_prompts_line(dice, dice.pick({"fp16", "bf16"}), "d" + dim() + " dv" + dim());
    for (const char* logits : {" softcap(20)", " alibi", " sink"}) {
      if (dice.below(4) == 0) line += logits;
    }
    const auto all = sm90_candidates(parse_problem(line), cuda().limits());
    return checked_by_one_of(all, dice, line, seed, runs);
  });
  EXPECT_GT(runs, 0);
}

TEST_F(HopperPaged, RunsLeaveTheSameBits) {
  expect_same_bits(
      "fwd bf16 causal hq8 hk2 d128 lens(700,300,1,90) lens_k(900,3000,70,90) page(16)",
      on_hopper(""), 200);
}

class Decode : public DeviceTest {};

TEST_F(Decode, RandomListsMeetTheRule) {
  fuzz({"bf16"}, [](const std::string&, std::uint64_t seed) {
    Dice dice(seed);
    return dfa::checked(random_decode_line(dice), seed, {.backend = "cuda"});
  });
}

TEST_F(Decode, RandomCachesInE4m3MeetTheRule) {
  fuzz({"bf16"}, [](const std::string&, std::uint64_t seed) {
    Dice dice(13000 + seed);
    std::string line = random_decode_line(dice);
    if (line.find(" page(") == std::string::npos) line += " page(16)";
    if (dice.below(4) == 0) line += " batch_invariant";
    return dfa::checked(line + " kv(e4m3)", seed, {.backend = "cuda"});
  });
}

// Every tile, not the first alone.
TEST_F(Decode, CachesInE4m3MeetTheRuleOnEveryConfiguration) {
  for (const char* rest : {"hq8 hk2 d128 lens(1,1,1) lens_k(5000,1,333)",
                           "causal hq16 hk2 d64 lens(4,3) lens_k(700,2999) sink",
                           "hq2 hk2 d256 lens(1,2) lens_k(700,1000)"}) {
    const std::string line = std::string("fwd bf16 ") + rest + " page(16) kv(e4m3)";
    const Problem p = parse_problem(line);
    const std::vector<ForwardConfig> all = split_kv_candidates(p, cuda().limits());
    EXPECT_GE(all.size(), 3u) << line;
    for (const ForwardConfig& c : all) {
      EXPECT_TRUE(dfa::checked(line, 5, {.backend = "cuda", .config = to_text(c)}));
    }
  }
}

// Splits of any number, and of any size.
TEST_F(Decode, RandomSplitsMeetTheRule) {
  fuzz({"bf16"}, [](const std::string&, std::uint64_t seed) {
    Dice dice(5000 + seed);
    const std::string line = random_decode_line(dice);
    const Problem p = parse_problem(line);
    if (!select_forward(p, cuda().limits()).split_kv) return false;
    std::string config = "num_splits=" + std::to_string(1 + dice.below(700));
    if (p.paged() && dice.below(2)) {
      config = "split_keys=" + std::to_string(128 * (1 + dice.below(8)));
    }
    return dfa::checked(line, seed, {.backend = "cuda", .config = config});
  });
}

// What a problem says of splits: at most so many, or sizes of their own.
TEST_F(Decode, RandomSplitsAsAskedMeetTheRule) {
  fuzz({"bf16"}, [](const std::string&, std::uint64_t seed) {
    Dice dice(9000 + seed);
    const std::string line =
        random_decode_line(dice) +
        (dice.below(3) == 0 ? std::string(" batch_invariant")
                            : " num_splits(" + std::to_string(1 + dice.below(20)) + ")");
    if (!cuda().supports(parse_problem(line), {})) return false;
    return dfa::checked(line, seed, {.backend = "cuda"});
  });
}

TEST_F(Decode, DenseKeysMeetTheRule) {
  for (const char* line :
       {"fwd bf16 b1 hq32 hk8 sq1 sk20000 d128", "fwd fp16 causal b8 hq8 hk8 sq5 sk3001 d64",
        "fwd bf16 window(900,0) b3 hq12 hk2 sq4 sk2000 d96 softcap(9) sink layout(bshd)"}) {
    EXPECT_TRUE(
        dfa::checked(line, 3, {.backend = "cuda", .config = "target=cuda_sm80,split_kv=true"}));
  }
}

TEST_F(Decode, RunsLeaveTheSameBits) {
  for (const char* line : {"fwd bf16 b1 hq32 hk8 sq1 sk20000 d128 page(16)",
                           "fwd bf16 causal b9 hq64 hk8 sq2 sk3000 d64 page(64) sink",
                           "fwd bf16 b1 hq32 hk8 sq1 sk20000 d128 page(16) kv(e4m3)"}) {
    expect_same_bits(line, {.backend = "cuda"}, 1000);
  }
}

}  // namespace
}  // namespace dfa
