// cuDNN called from here, on a real device: its outputs by our ruler, its time beside ours.
#include "bench/cudnn_peer.h"
#include "device/device_case.h"

namespace dfa {
namespace {

class Cudnn : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    try {
      peer_ = std::make_unique<bench::CudnnPeer>(cuda());
      std::printf("%s\n", peer_->version().c_str());
    } catch (const Unsupported& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::unique_ptr<bench::CudnnPeer> peer_;
};

TEST_F(Cudnn, ItsForwardMeetsTheRuleWithItsLogSumExp) {
  for (const char* line :
       {"fwd bf16 b2 h4 s512 d64", "fwd fp16 causal b2 h4 s512 d128",
        "fwd bf16 causal b1 hq8 hk2 s1000 d128", "fwd fp16 b1 hq6 hk2 sq300 sk700 d64",
        "fwd bf16 causal b2 h3 s640 d64 layout(bshd)"}) {
    measure::ProblemBuffers buffers(parse_problem(line), "cuda", 3);
    const CheckReport report =
        peer_->implementation(buffers, bench::Launch::eager, 1)->check({.seed = 3});
    EXPECT_TRUE(report.ok) << line << "\n" << report.summary();
  }
}

TEST_F(Cudnn, ItIsTimedInTurnsWithOurs) {
  for (const char* line : {"fwd bf16 b4 h16 s4096 d128", "fwd bf16 causal b4 h16 s4096 d128",
                           "fwd bf16 b4 h16 s4096 d64", "fwd bf16 causal b4 h16 s4096 d64"}) {
    const Problem p = parse_problem(line);
    measure::ProblemBuffers buffers(p, "cuda", 3);
    const measure::PassPlans plans =
        measure::prepare(p, {.backend = "cuda", .algorithm = Algorithm::flash});
    const auto cudnn = peer_->implementation(buffers, bench::Launch::eager, 2);
    std::vector<double> ours, theirs;
    buffers.time_s(plans, 2);
    for (int turn = 0; turn < 15; ++turn) {
      ours.push_back(buffers.time_s(plans, 2));
      theirs.push_back(cudnn->time_s());
    }
    std::sort(ours.begin(), ours.end());
    std::sort(theirs.begin(), theirs.end());
    std::printf("%s: ours %.1f, cuDNN %.1f TFLOP/s, median of 15 turns\n", line,
                2e-12 * plans.flops() / ours[7], 2e-12 * plans.flops() / theirs[7]);
    EXPECT_GT(theirs[7], 0);
  }
}

}  // namespace
}  // namespace dfa
