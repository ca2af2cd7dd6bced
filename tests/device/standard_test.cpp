// Standard attention on a real device, with its real matrix products.
#include "device/device_case.h"

namespace dfa {
namespace {

using Standard = DeviceTest;

// Rows that no block holds in registers, and a memory layout that is copied.
constexpr const char* kMore[] = {
    "fwdbwd bf16 b1 h1 sq40 sk9001 d64",
    "fwdbwd fp32 causal b1 hq2 hk1 sq70 sk8191 d64",
    "fwd fp16 causal b1 h1 sq33 sk40000 d64",
    "fwd fp32 b1 h1 sq9 sk30003 d32 window(20000,3)",
    "fwdbwd bf16 causal b2 hq6 hk2 sq300 sk200 d64 layout(bshd)",
};

TEST_F(Standard, EveryProblemOfTheFilesMeetsTheRule) {
  std::vector<std::string> lines(std::begin(kMore), std::end(kMore));
  for (const char* file : {"regressions.txt", "test_quick.txt", "gpu.txt"}) {
    for (const std::string& line : problem_lines(file)) {
      lines.push_back(line);
      const std::size_t at = line.find("fp32");
      // A backward alone is given what the default algorithm's forward returns.
      if (at != std::string::npos && line.rfind("bwd", 0) != 0) {
        lines.push_back(std::string(line).replace(at, 4, "tf32"));
      }
    }
  }
  std::uint64_t seed = 0;
  for (const std::string& line : lines) EXPECT_TRUE(checked_standard(line, ++seed)) << line;
  std::printf("%d problems ran\n", static_cast<int>(seed));
}

// What tests/device/sanitize.sh runs under compute-sanitizer.
TEST_F(Standard, SmallProblemsMeetTheRule) {
  for (const std::string& line : problem_lines("sanitize.txt")) {
    EXPECT_TRUE(checked_standard(line, 3)) << line;
  }
  for (const char* line : {"fwdbwd tf32 b1 h1 s70 d40", "fwdbwd fp16 b1 h1 sq3 sk9001 d64",
                           "fwdbwd bf16 b2 hq2 hk1 sq20 sk600 d64 layout(bshd)"}) {
    EXPECT_TRUE(checked_standard(line, 3)) << line;
  }
}

TEST_F(Standard, RandomProblemsMeetTheRule) {
  EXPECT_GT(fuzz({"bf16", "fp16", "fp32", "tf32"}, checked_standard), 20);
}

TEST_F(Standard, RunsGiveTheSameBits) {
  for (const char* line :
       {"fwdbwd bf16 causal b2 hq8 hk2 s1000 d64", "fwdbwd fp32 b1 h4 sq333 sk777 d128"}) {
    expect_same_bits(line, {.backend = "cuda", .algorithm = Algorithm::standard}, 200);
  }
}

constexpr const char* kStored = "StandardConfig{.probabilities=Probabilities::stored}";

TEST_F(Standard, StoredProbabilitiesMeetTheRule) {
  std::uint64_t seed = 0;
  for (const char* file : {"regressions.txt", "test_quick.txt", "gpu.txt"}) {
    for (const std::string& line : problem_lines(file)) {
      if (line.rfind("fwdbwd", 0) != 0) continue;
      EXPECT_TRUE(checked(line, ++seed, {.backend = "cuda", .config = kStored})) << line;
    }
  }
  std::printf("%d problems ran\n", static_cast<int>(seed));
}

// The forward's softmax is the one that the backward would run again.
TEST_F(Standard, StoredProbabilitiesGiveTheGradientsOfRecomputedOnesToTheLastBit) {
  for (const char* line :
       {"fwdbwd bf16 causal b2 hq8 hk2 s1000 d64", "fwdbwd fp32 b1 h4 sq333 sk777 d128"}) {
    measure::ProblemBuffers buffers(parse_problem(line), "cuda", 1);
    std::vector<std::string> bits;
    for (const char* config :
         {"StandardConfig{.probabilities=Probabilities::recomputed}", kStored}) {
      buffers.run(measure::prepare(buffers.problem(), {.backend = "cuda", .config = config}));
      const measure::HostOutputs out = buffers.outputs();
      for (const AlignedBuffer* one : {&out.dq, &out.dk, &out.dv}) {
        bits.emplace_back(one->as<char>(), one->size());
      }
    }
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(bits[i] == bits[i + 3]) << line << " " << i;
  }
}

TEST_F(Standard, MatricesThatDoNotFitAreOutOfMemoryAndTheProcessGoesOn) {
  const Problem p = parse_problem("fwd bf16 b16 h16 s65536 d8");
  measure::ProblemBuffers buffers(p, "cuda", 1);
  const Plan plan = dfa::plan(p, {.backend = "cuda", .algorithm = Algorithm::standard});
  EXPECT_EQ(plan.workspace_bytes >> 42, 1u);  // 4 TiB of S
  EXPECT_THROW(buffers.forward(plan), OutOfMemory);
  EXPECT_TRUE(checked_standard("fwd bf16 h1 s64 d64", 1));
}

}  // namespace
}  // namespace dfa
