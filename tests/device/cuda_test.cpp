// The CUDA backend's FlashAttention on a real device: what cannot be known without one.
#include "device/device_case.h"
#include "plan/select.h"
#include "plan/validate.h"
#include "spec/config_text.h"
#include "spec/passes.h"
#include "tensors.h"

namespace dfa {
namespace {

PlanOptions on_device(const std::string& config = "") {
  return {.backend = "cuda", .algorithm = Algorithm::flash, .config = config};
}

bool checked(const std::string& line, std::uint64_t seed) {
  return dfa::checked(line, seed, on_device());
}

bool checked(const std::string& line, std::uint64_t seed, const char* config) {
  return dfa::checked(line, seed, on_device(config));
}

using Correctness = DeviceTest;

// What runs on anything from Ampere on, and on Hopper where its own kernels do not.
constexpr const char* kPortable = "target=cuda_sm80";

bool has_hopper() { return cuda().limits().highest == Target::cuda_sm90; }

int ran_of(std::initializer_list<const char*> files, const char* config) {
  return dfa::ran_of(files, on_device(config));
}

TEST_F(Correctness, EveryProblemOfTheFilesMeetsTheRule) {
  EXPECT_GE(ran_of({"regressions.txt", "test_quick.txt", "gpu.txt", "hopper_forward.txt",
                    "hopper_backward.txt"},
                   ""),
            120);
}

TEST_F(Correctness, PortableEveryProblemOfTheFilesMeetsTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "they are the default here";
  EXPECT_GE(ran_of({"regressions.txt", "test_quick.txt", "gpu.txt"}, kPortable), 50);
}

// What tests/device/sanitize.sh runs under compute-sanitizer.
TEST_F(Correctness, SmallProblemsMeetTheRule) {
  for (const std::string& line : problem_lines("sanitize.txt"))
    EXPECT_TRUE(checked(line, 3)) << line;
}

TEST_F(Correctness, HoppersFp32SmallProblemsMeetTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  for (const char* line :
       {"fwdbwd fp32 causal b1 hq4 hk2 s129 d64", "fwdbwd fp32 b1 h2 sq70 sk200 d128"}) {
    EXPECT_TRUE(checked(line, 3, "target=cuda_sm90"));
  }
}

TEST_F(Correctness, PortableSmallProblemsMeetTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "they are the default here";
  for (const std::string& line : problem_lines("sanitize.txt"))
    EXPECT_TRUE(checked(line, 3, kPortable)) << line;
}

TEST_F(Correctness, RandomProblemsMeetTheRule) {
  EXPECT_GT(fuzz({"bf16", "fp16", "tf32", "fp32"},
                 [](const std::string& line, std::uint64_t seed) { return checked(line, seed); }),
            20);
}

TEST_F(Correctness, PortableRandomProblemsMeetTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "they are the default here";
  EXPECT_GT(fuzz({"bf16", "fp16", "fp32"},
                 [](const std::string& line, std::uint64_t seed) {
                   return checked(line, seed, kPortable);
                 }),
            20);
}

// Tiles for sums of dq in order that every head dim from 32 up takes.
constexpr const char* kSerialized =
    "BackwardConfig{target=cuda_sm80,dq=serialized,block_q=64,block_k=128,warps=8,sharing=2,ctas=1,"
    "dq_block_q=128}";
constexpr const char* kOrderedAlone =
    "BackwardConfig{target=cuda_sm80,dq=serialized,block_q=32,block_k=128,warps=4,sharing=1,ctas=2,"
    "dq_block_q=128}";

TEST_F(Correctness, SumsInOrderMeetTheRule) {
  for (const char* line :
       {"fwdbwd bf16 b1 h2 s1 d64", "fwdbwd bf16 b1 h2 s127 d64", "fwdbwd fp16 b1 h2 s129 d64",
        "fwdbwd bf16 causal b2 hq6 hk2 s515 d64", "fwdbwd bf16 causal b1 hq4 hk1 sq100 sk900 d32",
        "fwdbwd bf16 causal b1 h2 sq700 sk300 d64", "fwdbwd bf16 b1 h2 s600 d64 window(33,65)",
        "fwdbwd fp16 b1 h3 s600 d64 window(150,0) layout(bshd)",
        "fwdbwd bf16 b1 h2 s300 d64 scale(-0.125)"}) {
    EXPECT_TRUE(checked(line, 11, kSerialized));
    EXPECT_TRUE(checked(line, 12, kOrderedAlone));
  }
  for (const char* line : {"fwdbwd fp16 causal b2 hq4 hk2 s520 d128", "fwdbwd bf16 b1 h2 s333 d96",
                           "fwdbwd bf16 b1 h2 s200 d128 dv64"}) {
    EXPECT_TRUE(checked(line, 13, kSerialized));
  }
}

// Of Hopper's backward by one block, in turn and as sums come.
constexpr const char* kInTurn =
    "BackwardConfig{target=cuda_sm90,dq=serialized,cluster=1,persistent=false,masked=false,"
    "split_q=false,gqa_inner_loop=false}";
constexpr const char* kAtomic =
    "BackwardConfig{target=cuda_sm90,dq=atomic,cluster=1,persistent=false,masked=false,"
    "split_q=false,gqa_inner_loop=false}";

TEST_F(Correctness, HoppersBackwardsInTurnMeetTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  for (const char* file : {"hopper_backward.txt", "hopper_wide_backward.txt"}) {
    for (const std::string& line : problem_lines(file)) EXPECT_TRUE(checked(line, 5, kInTurn));
  }
  for (const char* line :
       {"fwdbwd bf16 causal b2 hq8 hk2 s1000 d256", "fwdbwd bf16 b4 h16 s1000 d128"}) {
    expect_same_bits(line, on_device(kInTurn), 1000);
  }
}

constexpr const char* kPairs =
    "BackwardConfig{target=cuda_sm90,dq=serialized,cluster=2,persistent=false,masked=false,"
    "split_q=false,gqa_inner_loop=false}";
constexpr const char* kAtomicPairs =
    "BackwardConfig{target=cuda_sm90,dq=atomic,cluster=2,persistent=false,masked=false,"
    "split_q=false,gqa_inner_loop=false}";

TEST_F(Correctness, ByPairsSmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  for (const char* line :
       {"fwdbwd bf16 causal b1 hq4 hk2 s300 d128", "fwdbwd fp16 b1 h1 sq150 sk270 d96",
        "fwdbwd bf16 b1 h1 sq300 sk270 d64"}) {
    EXPECT_TRUE(checked(line, 3, kPairs));
  }
}

TEST_F(Correctness, HoppersBackwardByPairsMeetsTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  int ran = 0;
  const auto check = [&](const std::string& line, const char* config) {
    const Problem p = parse_problem(line);
    if (std::max(p.d, p.dv) > 128 || (p.d <= 64 && p.dv > 64)) return;
    ran += checked(line, static_cast<std::uint64_t>(50 + ran), config);
  };
  for (const std::string& line : problem_lines("hopper_backward.txt")) {
    check(line, kPairs);
    if (!parse_problem(line).deterministic && parse_problem(line).dv <= parse_problem(line).d) {
      check(line, kAtomicPairs);
    }
  }
  for (const char* mask : {"", "causal "}) {
    for (const char* lengths : {"s1", "s63", "s64", "s65", "s127", "s128", "s129", "s255", "s256",
                                "s257", "sq1 sk700", "sq700 sk1", "sq300 sk100", "sq385 sk64"}) {
      for (const char* dim : {" d64", " d96", " d128"}) {
        check(std::string("fwdbwd bf16 ") + mask + "b2 hq4 hk2 " + lengths + dim, kPairs);
      }
    }
  }
  EXPECT_GE(ran, 80);
}

TEST_F(Correctness, ThousandRunsOfHoppersBackwardByPairsGiveTheSameBits) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  for (const char* line :
       {"fwdbwd bf16 causal b2 hq8 hk2 s1000 d128", "fwdbwd bf16 b4 h16 s1000 d128",
        "fwdbwd fp16 b1 h4 sq333 sk777 d96", "fwdbwd bf16 b2 hq4 hk2 s900 d128 window(300,100)",
        "fwdbwd bf16 causal b2 hq8 hk2 s1000 d64"}) {
    expect_same_bits(line, on_device(kPairs), 1000);
  }
}

// Likewise where an idle warp rounds dq, of each kernel that has one.
constexpr const char* kRounding[] = {
    "BackwardConfig{target=cuda_sm90,dq=serialized_fused,cluster=2,persistent=false,masked=false,"
    "split_q=false,gqa_inner_loop=false}",
    "BackwardConfig{target=cuda_sm90,dq=serialized_fused,cluster=1,persistent=false,masked=false,"
    "split_q=false,gqa_inner_loop=false}"};

TEST_F(Correctness, RoundingSmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  EXPECT_TRUE(checked("fwdbwd bf16 causal b26 hq12 hk4 s100 d128", 3, kRounding[0]));
  EXPECT_TRUE(checked("fwdbwd bf16 b1 h1 sq300 sk270 d128", 3, kRounding[0]));
  EXPECT_TRUE(checked("fwdbwd bf16 causal b26 hq16 hk8 s100 d128", 3, kRounding[1]));
}

// Problems with each of some kernels of d and dv up to 128; counts those that ran.
struct Runs {
  std::uint64_t seed;
  int ran = 0;

  void check(const std::string& line, const char* config) {
    const Problem p = parse_problem(line);
    if (std::max(p.d, p.dv) > 128 || p.dv > p.d) return;
    if (p.deterministic && std::string(config).find("dq=atomic") != std::string::npos) return;
    ran += checked(line, seed + static_cast<std::uint64_t>(ran), config);
  }
  void file(const char* config) {
    for (const std::string& line : problem_lines("hopper_backward.txt")) check(line, config);
  }
  void edges(const char* config) {
    for (const char* lengths : {"s1", "s64", "s65", "s129", "sq1 sk300", "sq300 sk1"}) {
      for (const char* dim : {" d64", " d128"}) {
        check(std::string("fwdbwd bf16 causal b30 h7 ") + lengths + dim, config);
      }
    }
  }
};

// Even and odd numbers of tiles for each key head's blocks.
void expect_same_bits_in_a_thousand_runs(const char* config) {
  for (const char* line :
       {"fwdbwd bf16 causal b4 h16 s1000 d64", "fwdbwd bf16 causal b4 h16 s1000 d128",
        "fwdbwd bf16 causal b2 h16 s1027 d128",
        "fwdbwd bf16 b8 hq16 hk8 s900 d128 window(300,100)"}) {
    expect_same_bits(line, on_device(config), 1000);
  }
}

TEST_F(Correctness, HoppersBackwardsWhoseWarpRoundsDqMeetTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  Runs runs{90};
  runs.file(kRounding[0]);
  for (const char* config : kRounding) runs.edges(config);
  EXPECT_GE(runs.ran, 30);
}

TEST_F(Correctness, ThousandRunsWhoseWarpRoundsDqGiveTheSameBits) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  for (const char* config : kRounding) expect_same_bits_in_a_thousand_runs(config);
}

// Likewise where pairs of blocks stay and take one work tile after the other.
constexpr const char* kPersistent[] = {
    "BackwardConfig{target=cuda_sm90,dq=serialized_fused,cluster=2,persistent=true,masked=false,"
    "split_q=false,gqa_inner_loop=false}",
    "BackwardConfig{target=cuda_sm90,dq=serialized,cluster=2,persistent=true,masked=false,"
    "split_q=false,gqa_inner_loop=false}"};

TEST_F(Correctness, PersistentSmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  EXPECT_TRUE(checked("fwdbwd bf16 causal b26 hq12 hk4 s100 d128", 4, kPersistent[0]));
  EXPECT_TRUE(checked("fwdbwd bf16 causal b2 h7 sq300 sk3000 d128", 4, kPersistent[1]));
  EXPECT_TRUE(checked("fwdbwd bf16 b40 hq4 hk2 sq300 sk700 d64", 4, kPersistent[0]));
}

TEST_F(Correctness, HoppersBackwardsThatStayMeetTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  Runs runs{190};
  runs.file(kPersistent[0]);
  runs.edges(kPersistent[1]);
  // More work tiles than pairs, some of keys that no query sees, and few.
  for (const char* line : {"fwdbwd bf16 b4 h8 sq200 sk2100 d128 window(100,0)",
                           "fwdbwd bf16 causal b2 hq8 hk2 s1000 d96", "fwdbwd fp16 b6 h9 s777 d64",
                           "fwdbwd bf16 causal b3 h40 s515 d64"}) {
    for (const char* config : kPersistent) runs.check(line, config);
  }
  EXPECT_GE(runs.ran, 30);
}

// And where sums of dq come as they come.
constexpr const char* kPersistentAtomic =
    "BackwardConfig{target=cuda_sm90,dq=atomic,cluster=2,persistent=true,masked=false,"
    "split_q=false,gqa_inner_loop=false}";

TEST_F(Correctness, StayingAtomicSmallProblemsMeetTheRule) {  // likewise
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  EXPECT_TRUE(checked("fwdbwd bf16 causal b2 hq4 hk2 s600 d128", 4, kPersistentAtomic));
  EXPECT_TRUE(checked("fwdbwd bf16 causal b20 hq4 hk2 s700 d64", 4, kPersistentAtomic));
}

TEST_F(Correctness, HoppersBackwardsThatStayAtomicMeetTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  Runs runs{390};
  runs.file(kPersistentAtomic);
  runs.edges(kPersistentAtomic);
  for (const char* line : {"fwdbwd bf16 b4 h8 sq200 sk2100 d128 window(100,0)",
                           "fwdbwd bf16 causal b2 hq8 hk2 s1000 d96", "fwdbwd fp16 b6 h9 s777 d64",
                           "fwdbwd bf16 causal b3 h40 s515 d64",
                           "fwdbwd bf16 causal b1 h2 s9000 d64", "fwdbwd bf16 b1 h1 s9000 d128"}) {
    runs.check(line, kPersistentAtomic);
  }
  EXPECT_GE(runs.ran, 30);
}

TEST_F(Correctness, ThousandPersistentRunsGiveTheSameBits) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  for (const char* config : kPersistent) expect_same_bits_in_a_thousand_runs(config);
}

// And where warpgroups have no products of queries that see none of their keys, and the second
// block's keys lie between those of the first one.
constexpr const char* kMasked[] = {
    "BackwardConfig{target=cuda_sm90,dq=serialized_fused,cluster=2,persistent=true,masked=true,"
    "split_q=false,gqa_inner_loop=false}",
    "BackwardConfig{target=cuda_sm90,dq=serialized_fused,cluster=2,persistent=false,masked=true,"
    "split_q=false,gqa_inner_loop=false}",
    "BackwardConfig{target=cuda_sm90,dq=serialized,cluster=2,persistent=false,masked=true,"
    "split_q=false,gqa_inner_loop=false}"};

TEST_F(Correctness, SkippingSmallProblemsMeetTheRule) {  // likewise under compute-sanitizer
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  EXPECT_TRUE(checked("fwdbwd bf16 causal b2 hq4 hk2 s600 d128", 4, kMasked[0]));
  EXPECT_TRUE(checked("fwdbwd bf16 b2 h7 sq300 sk1200 d128 window(70,0)", 4, kMasked[1]));
  EXPECT_TRUE(checked("fwdbwd bf16 causal b20 hq4 hk2 s700 d64", 4, kMasked[0]));
}

TEST_F(Correctness, HoppersBackwardsThatSkipMeetTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  Runs runs{290};
  runs.file(kMasked[0]);
  runs.edges(kMasked[1]);
  runs.edges(kMasked[2]);
  for (const char* line : {"fwdbwd bf16 b4 h8 sq200 sk2100 d128 window(100,0)",
                           "fwdbwd bf16 causal b2 hq8 hk2 s1000 d96", "fwdbwd fp16 b6 h9 s777 d64",
                           "fwdbwd bf16 causal b3 h40 s515 d64"}) {
    for (const char* config : kMasked) runs.check(line, config);
  }
  EXPECT_GE(runs.ran, 30);
}

TEST_F(Correctness, ThousandRunsThatSkipGiveTheSameBits) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  for (const char* config : kMasked) expect_same_bits_in_a_thousand_runs(config);
}

// Tiles that no problem of the files takes unasked.
TEST_F(Correctness, HoppersOtherTilesMeetTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  for (const std::string& line : problem_lines("hopper_backward.txt")) {
    const Problem p = parse_problem(line);
    if (p.dv > p.d) continue;
    EXPECT_TRUE(checked(line, 5, kAtomic));
  }
  for (const char* line :
       {"fwd bf16 causal b1 h2 s515 d64", "fwd bf16 b1 h2 s515 d96", "fwd fp16 b1 h2 s515 d128"}) {
    for (const ForwardConfig& config : sm90_candidates(parse_problem(line), cuda().limits())) {
      EXPECT_TRUE(checked(line, 7, to_text(config).c_str()));
    }
  }
}

// In fp32 by products of bf16 parts, held to the rule of fp32.
constexpr const char* kHopperFp32x3 = "target=cuda_sm90";

TEST_F(Correctness, HoppersFp32MeetsTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  std::uint64_t ran = 0;
  for (const std::string& line : problem_lines("hopper_fp32.txt")) {
    EXPECT_TRUE(checked(line, ++ran, kHopperFp32x3)) << line;
  }
  for (const char* line : {"fwd fp32 causal b1 h2 s515 d64", "fwd fp32 b1 h2 sq300 sk515 d96",
                           "fwd fp32 causal b1 h2 s515 d128"}) {
    for (const ForwardConfig& config : fp32x3_candidates(parse_problem(line), cuda().limits())) {
      EXPECT_TRUE(checked(line, ++ran, to_text(config).c_str()));
      expect_same_bits(line, on_device(to_text(config)), 200);
    }
  }
  std::printf("%d problems ran\n", static_cast<int>(ran));
}

TEST_F(Correctness, HoppersE4m3MeetsTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  const std::vector<std::string> lines = problem_lines("hopper_e4m3.txt");
  std::uint64_t seed = 0;
  for (const std::string& line : lines) {  // factors of blocks of rows: whether plans take them yet
    EXPECT_TRUE(checked(line, ++seed, "target=cuda_sm90")) << line;
  }
  for (const char* line :
       {"fwd e4m3 causal b1 h2 s515 d64", "fwd e4m3 b1 h2 sq300 sk515 d128",
        "fwd e4m3 causal b1 h2 s515 d256", "fwd e4m3 causal b1 h2 s515 d64 descale_rows(192)",
        "fwd e4m3 b1 h2 sq300 sk515 d128 descale_rows(128)",
        "fwd e4m3 causal b1 h2 s515 d256 descale_rows(64)"}) {
    for (const ForwardConfig& config : sm90_candidates(parse_problem(line), cuda().limits())) {
      EXPECT_TRUE(checked(line, ++seed, to_text(config).c_str()));
      expect_same_bits(line, on_device(to_text(config)), 200);
    }
  }
}

// v as it lies, transposed in the kernel: with the bits of the one that takes it packed.
TEST_F(Correctness, HoppersE4m3TransposesValues) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  std::uint64_t seed = 0;
  for (const char* line :
       {"fwd e4m3 causal b1 h2 s515 d64", "fwd e4m3 b2 hq4 hk2 sq300 sk2515 d128",
        "fwd e4m3 causal b1 h2 s515 d256", "fwd e4m3 b1 h3 sq300 sk515 d96 layout(bshd)",
        "fwd e4m3 b1 h2 sq300 sk515 d128 descale_rows(128)",
        "fwd e4m3 causal hq4 hk2 lens(515,1,70) lens_k(600,9,2000) d128"}) {
    const Problem p = parse_problem(line);
    measure::ProblemBuffers buffers(p, "cuda", 7);
    for (ForwardConfig config : sm90_candidates(p, cuda().limits())) {
      config.transpose_values = false;
      if (!validate_config(config, p, cuda().limits())) continue;
      buffers.run(measure::prepare(p, on_device(to_text(config))));
      const measure::HostOutputs packed = buffers.outputs();
      config.transpose_values = true;
      if (!validate_config(config, p, cuda().limits())) continue;
      EXPECT_TRUE(checked(line, ++seed, to_text(config).c_str()));
      buffers.run(measure::prepare(p, on_device(to_text(config))));
      EXPECT_EQ(other_bits(packed, buffers.outputs()), "") << line << ", " << to_text(config);
      expect_same_bits(line, on_device(to_text(config)), 200);
    }
  }
}

// Factors a thousandfold apart, of zeros, and of a sign of their own, as nobody draws them.
TEST_F(Correctness, HoppersE4m3MeetsTheRuleWithAnyFactorsOfBlocks) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  const std::function<float(float, std::size_t)> changes[] = {
      [](float x, std::size_t i) { return i % 2 == 0 ? x : 1000 * x; },
      [](float x, std::size_t i) { return i % 2 == 0 ? x : x / 1000; },
      [](float x, std::size_t i) { return i % 3 == 1 ? 0 : x; },
      [](float, std::size_t) { return 0.f; },
      [](float x, std::size_t i) { return i % 3 == 0 ? -x : x; }};
  for (const char* line : {"fwd e4m3 causal b2 hq4 hk2 sq700 sk900 d64 descale_rows(64)",
                           "fwd e4m3 b1 h2 s1000 d128 descale_rows(128) scale(-0.1)",
                           "fwd e4m3 b1 hq4 hk1 s515 d192 window(200,30) descale_rows(192)",
                           "fwd e4m3 causal b1 h2 s515 d256 descale_rows(64)"}) {
    for (auto of : {&HostDescales::q, &HostDescales::k, &HostDescales::v}) {
      for (const auto& change : changes) {
        Tensors t(line, 7);
        std::vector<float>& factors = t.factors.*of;
        for (std::size_t i = 0; i < factors.size(); ++i) factors[i] = change(factors[i], i);
        measure::ProblemBuffers buffers(
            t.p, "cuda", 7,
            {.q = t.q.data(), .k = t.k.data(), .v = t.v.data(), .factors = t.factors});
        const CheckReport report =
            buffers.check(measure::prepare(t.p, on_device("target=cuda_sm90")), {.seed = 7});
        EXPECT_TRUE(report.ok) << line << "\n" << report.summary();
      }
    }
  }
}

// At this scale the backward may follow any forward.
TEST_F(Correctness, HoppersOtherBackwardsInFp32MeetTheRule) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  std::uint64_t seed = 0;
  for (const char* line : {"bwd fp32 causal b1 hq4 hk2 s515 d64", "bwd fp32 b1 h2 sq300 sk515 d96",
                           "bwd fp32 b1 h11 s515 d64 window(100,30)"}) {
    const Problem p = parse_problem(line);
    for (const BackwardConfig& config : fp32x3_backward_candidates(p, cuda().limits())) {
      EXPECT_TRUE(checked(line, ++seed, to_text(config).c_str()));
    }
  }
}

TEST_F(Correctness, HoppersFp32MeetsTheRuleAtRandom) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  EXPECT_GT(
      fuzz({"fp32"},
           [](const std::string& line, std::uint64_t seed) {
             return !fp32x3_backward_candidates(parse_problem(line), cuda().limits()).empty() &&
                    checked(line, seed, kHopperFp32x3);
           }),
      20);
}

TEST_F(Correctness, ThousandRunsOfHoppersFp32GiveTheSameBits) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  for (const char* line :
       {"fwdbwd fp32 causal b2 hq8 hk2 s1000 d64", "fwdbwd fp32 b1 h4 sq333 sk777 d128",
        "fwdbwd fp32 b2 hq4 hk2 s900 d96 window(300,100)"}) {
    expect_same_bits(line, on_device(kHopperFp32x3), 1000);
  }
}

TEST_F(Correctness, ThousandRunsOfHoppersBackwardGiveTheSameBits) {
  if (!has_hopper()) GTEST_SKIP() << "of 9.0 alone";
  for (const char* line : {"fwdbwd bf16 causal b2 hq8 hk2 s1000 d64 deterministic",
                           "fwdbwd fp16 b1 h4 sq333 sk777 d128", "fwdbwd bf16 b4 h32 s1000 d64",
                           "fwdbwd bf16 causal b2 h16 s1027 d128",
                           "fwdbwd fp16 b2 hq4 hk2 s900 d96 window(300,100)"}) {
    expect_same_bits(line, on_device(), 1000);
    expect_same_bits(line, on_device(kInTurn), 200);
  }
}

TEST_F(Correctness, ThousandRunsGiveTheSameBits) {
  struct Case {
    const char* line;
    const char* config;
  };
  // Few work tiles under a mask come in parts, whose sums have equal bits with `deterministic`
  // alone.
  for (const auto& [line, config] :
       {Case{"fwdbwd bf16 causal b2 hq8 hk2 s1000 d64 deterministic", ""},
        Case{"fwdbwd fp16 b1 h4 sq333 sk777 d128", ""},
        Case{"fwdbwd bf16 causal b2 hq8 hk2 s1000 d64", kOrderedAlone},
        Case{"fwdbwd bf16 b4 h32 s1000 d64", kOrderedAlone},
        Case{"fwdbwd fp16 b1 h4 sq333 sk777 d128", kSerialized}}) {
    expect_same_bits(line, on_device(config), 1000);
  }
}

// A grid of any size deals out the same work tiles.
TEST_F(Correctness, EveryBudgetOfMultiprocessorsGivesTheSameBits) {
  for (const char* line :
       {"fwd bf16 causal b2 hq8 hk2 s1000 d64", "fwd fp16 b1 h3 sq333 sk777 d128",
        "fwd bf16 causal b1 h5 s2100 d256", "fwd bf16 b2 h4 s600 d96 window(150,0)"}) {
    const Problem p = parse_problem(line);
    if (measure::prepare(p, on_device()).sms() == 0) {
      std::printf("takes no budget: %s\n", line);
      continue;
    }
    expect_same_bits_at_budgets(line, on_device(), p.d == 64 ? 1 : 7);  // every one of the first
  }
}

// What the accuracy guard sees: rounding, and tf32 in the place of fp32.
TEST_F(Correctness, RecomputedRowsTellHowExactAnOutputIs) {
  for (const char* line : {"fwd bf16 causal b2 hq8 hk2 s1000 d128",
                           "fwd fp16 b1 h3 sq333 sk777 d64", "fwd fp32 causal b1 h4 s700 d64"}) {
    const Problem p = parse_problem(line);
    measure::ProblemBuffers buffers(p, "cuda", 5);
    const auto rows = buffers.rows_check(64);
    const measure::PassPlans plans = measure::prepare(p, on_device());
    const CheckReport report = buffers.check(plans, {.seed = 5});
    ASSERT_TRUE(report.ok) << line;
    const double error = buffers.error(*rows, 1);
    std::printf("%s: %.2g, against fp64 %.2g\n", line, error, report.worst().max_error);
    EXPECT_LE(error, p.dtype == DType::fp32 ? 1e-5 : 8e-3) << line;
    if (p.dtype != DType::fp32) continue;
    Problem less = p;
    less.dtype = DType::tf32;
    buffers.run(measure::prepare(less, on_device()));
    const double worse = buffers.error(*rows, 1);
    std::printf("%s in tf32: %.2g\n", line, worse);
    EXPECT_GT(worse, 10 * error);
    EXPECT_LE(worse, 5e-3);
  }
}

// What the scheduler takes in the place of bf16, on the same tensors: right by its own rule, and
// seen by the guard for what it is.
TEST_F(Correctness, E4m3OfTensorsInBf16IsRightAndSeenAsLessExact) {
  for (const char* line : {"fwd bf16 causal b2 hq8 hk2 s1000 d128", "fwd bf16 b1 h3 s777 d64"}) {
    Problem p = parse_problem(line);
    measure::ProblemBuffers buffers(p, "cuda", 5);
    const auto rows = buffers.rows_check(64);
    const measure::PassPlans exact = measure::prepare(p, on_device());
    p.dtype = DType::e4m3;
    if (!cuda().supports(p, on_device())) GTEST_SKIP() << "e4m3 is refused here";
    const measure::PassPlans narrow = measure::prepare(p, on_device());
    const CheckReport own = buffers.check(narrow, {.seed = 5});
    EXPECT_TRUE(own.ok) << line << "\n" << own.summary();
    const double error = buffers.error(*rows, 1);
    EXPECT_GT(error, 5e-3) << line;
    EXPECT_LT(error, 0.5) << line;
    EXPECT_TRUE(buffers.check(exact, {.seed = 5}).ok) << line;
    EXPECT_LE(buffers.error(*rows, 1), 8e-3) << line;
  }
}

using Faults = DeviceTest;

TEST_F(Faults, WhatDoesNotFitIsRefusedAndTheProcessGoesOn) {
  EXPECT_THROW(cuda().device().allocate(std::size_t{1} << 46), OutOfMemory);
  EXPECT_TRUE(checked("fwd bf16 h1 s64 d64", 1));
}

TEST_F(Faults, HostPointersAreRefusedAndTheProcessGoesOn) {
  const Problem p = parse_problem("fwd bf16 h1 s64 d64");
  AlignedBuffer host(64 * 64 * 2);
  EXPECT_THROW(
      dfa::forward(dfa::plan(p, on_device()),
                   {.q = host.data(), .k = host.data(), .v = host.data(), .o = host.data()}),
      InvalidArgument);
  EXPECT_TRUE(checked("fwd bf16 h1 s64 d64", 1));
}

TEST_F(Faults, AnIllegalTileIsRefusedWithTheReason) {
  EXPECT_THROW(dfa::plan(parse_problem("fwd bf16 h1 s64 d64"), on_device("block_q=7")),
               InvalidArgument);
}

TEST_F(DeviceTest, TheCopyRateIsMeasured) {
  const Ceilings ceilings = cuda().diagnostics().measure_ceilings(0, 0.05);
  std::printf("copy %.0f GB/s, read plus write\n", ceilings.copy_bytes * 1e-9);
  EXPECT_GT(ceilings.copy_bytes, 1e11);
}

}  // namespace
}  // namespace dfa
