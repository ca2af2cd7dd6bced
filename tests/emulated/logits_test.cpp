// The portable kernels' own sources with logits that are not plain, on a processor, held against
// fp64.
#include "emulated/portable.h"

namespace dfa {
namespace {

using namespace emulated;

constexpr int kBias = 8;

template <typename Config>
constexpr Config with(Config config, int logits) {
  config.bias = (logits & kBias) != 0;
  return with_logits(config, logits);
}

std::string line_of(DType element, int dim, const char* rest, int logits) {
  return std::string("fwdbwd ") + name_of(element) + " " + rest + " d" + std::to_string(dim) +
         said_of(logits);
}

template <DType kElement, int kDim, int kLogits, bool kVarlen = false>
void expect_right(const char* rest) {
  const std::string line = line_of(kElement, kDim, rest, kLogits);
  expect_both_right<with(portable_forward(kElement, kDim, kVarlen), kLogits),
                    with(portable_backward(kElement, kDim, kVarlen), kLogits)>(line);
}

constexpr const char* kMasks[] = {"causal b2 hq4 hk2 sq70 sk100", "b1 hq2 hk1 sq100 sk65",
                                  "window(20,3) b1 hq2 hk2 sq90 sk40"};

TEST(EmulatedLogits, Softcap) {
  for (const char* rest : kMasks) {
    expect_right<DType::bf16, 64, kSoftcap>(rest);
    expect_right<DType::fp32, 64, kSoftcap>(rest);
  }
}

TEST(EmulatedLogits, Alibi) {
  for (const char* rest : kMasks) {
    expect_right<DType::bf16, 64, kAlibi>(rest);
    expect_right<DType::fp32, 32, kAlibi>(rest);
  }
}

TEST(EmulatedLogits, Sinks) {
  for (const char* rest : kMasks) {
    expect_right<DType::bf16, 64, kSink>(rest);
    expect_right<DType::fp32, 32, kSink>(rest);
  }
}

TEST(EmulatedLogits, AllAtOnce) {
  for (const char* rest : kMasks) expect_right<DType::bf16, 128, kSoftcap | kAlibi | kSink>(rest);
  expect_right<DType::fp32, 64, kSoftcap | kAlibi>("causal scale(-2) b1 hq2 hk2 sq70 sk70");
}

TEST(EmulatedLogits, SlopesAndSinksThatAreNan) {
  constexpr auto kConfig = with(portable_forward(DType::bf16, 128), kSoftcap | kAlibi | kSink);
  for (const char* mask : {"", "causal "}) {
    expect_nan_in_its_head_alone(
        std::string("fwd bf16 ") + mask + "b1 h2 s150 d128 softcap(3) alibi sink",
        [](Tensors& t) { run_forward<kConfig>(t); });
  }
}

TEST(EmulatedLogits, BiasesOfEveryShapeWhoseGradientAKernelSums) {
  for (const char* rest : kMasks) {
    for (const std::string bias : {" bias(b,h)", " bias(1,h,fp32)", " bias(1,1)"}) {
      expect_right<DType::bf16, 64, kBias>((rest + bias).c_str());
    }
    expect_right<DType::fp32, 32, kBias>((std::string(rest) + " bias(b,1,fp16)").c_str());
  }
}

TEST(EmulatedLogits, BiasesThatAreOneValueForAllQueriesOrKeys) {
  for (const char* bias : {" bias(b,1,1,k,fp16)", " bias(1,h,q,1,fp32)", " bias(1,1,1,1)"}) {
    Tensors t(line_of(DType::bf16, 64, kMasks[0], kBias) + bias, 5);
    run_forward<with(portable_forward(DType::bf16, 64), kBias)>(t);
    expect_met(check_forward(t.p, t.forward_args()), bias);
    t.d_bias.clear();
    run_backward<with(portable_backward(DType::bf16, 64), kBias)>(t);
    expect_met(check_backward(t.p, t.backward_args()), bias);
  }
}

// Rows that biases hide whole are as rows of a mask that see nothing.
TEST(EmulatedLogits, BiasesThatHideKeys) {
  Tensors t("fwdbwd bf16 b1 hq2 hk1 sq70 sk100 d64 bias(1,h,fp32)", 5);
  auto* bias = reinterpret_cast<float*>(t.bias.data());
  for (int i = 0; i < 2 * 70 * 100; ++i) {
    if (i / 100 % 3 == 0) bias[i] = i % 2 == 0 ? -INFINITY : -3.4e38f;
    if (i % 7 == 0) bias[i] = -INFINITY;
  }
  run_forward<with(portable_forward(DType::bf16, 64), kBias)>(t);
  expect_met(check_forward(t.p, t.forward_args()), "forward");
  run_backward<with(portable_backward(DType::bf16, 64), kBias)>(t);
  expect_met(check_backward(t.p, t.backward_args()), "backward");
  EXPECT_EQ(t.lse[0], -INFINITY);
}

TEST(EmulatedLogits, AllAtOnceWithABias) {
  for (const char* rest : kMasks) {
    expect_right<DType::bf16, 64, kSoftcap | kAlibi | kSink | kBias>(
        (std::string(rest) + " bias(1,h)").c_str());
  }
}

TEST(EmulatedLogits, PackedSequencesWithABias) {
  for (const char* bias : {" bias(b,h)", " bias(1,h,fp32)"}) {
    expect_right<DType::bf16, 64, kBias, true>(
        (std::string("causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)") + bias).c_str());
  }
}

TEST(EmulatedLogits, PackedSequences) {
  const char* rest = "causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)";
  expect_right<DType::bf16, 64, kSoftcap | kAlibi | kSink, true>(rest);
  expect_right<DType::fp32, 32, kSink, true>(rest);
}

}  // namespace
}  // namespace dfa
