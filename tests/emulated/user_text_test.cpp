// The portable kernels' own sources with texts, on a processor, held against fp64. What a device is
// given for a text stands in user_texts.h, compiled into this program.
#include "emulated/portable.h"
// and then:
#include <fstream>
#include <sstream>

#include "emulated/chosen_text.h"
#include "spec/expression_source.h"

namespace dfa {
namespace {

using namespace emulated;

TEST(EmulatedUserText, WhatIsCompiledHereIsWhatADeviceIsGiven) {
  std::ifstream file(std::string(DFA_SOURCE_DIR) + "/tests/emulated/user_texts.h");
  std::stringstream all;
  all << file.rdbuf();
  const auto expect_there = [&](const char* type, int n, const std::string& name) {
    const std::string source =
        user_text_source(parse_problem("fwd " + (type + (" h1 s8 d64 " + std::string(kTexts[n])))));
    const std::string begin = "struct UserText<true> {", end = "}  // namespace dfa";
    const auto from = source.find(begin) + begin.size();
    const std::string body = "struct " + name + " {" + source.substr(from, source.find(end) - from);
    EXPECT_NE(all.str().find(body), std::string::npos) << body;
  };
  for (int n = 0; n < 6; ++n) {
    expect_there("fp32", n, "Text" + std::to_string(n));
    for (const char* type : {"bf16", "fp16"}) {
      expect_there(type, n, (n == 1 ? "QuickText" : "Text") + std::to_string(n));
    }
  }
}

template <typename Config>
constexpr Config with_text(Config config, bool rest = false) {
  config.text = true;
  return with_logits(config, rest ? kSoftcap | kAlibi | kSink : 0);
}

template <DType kElement, int kDim, bool kVarlen = false, bool kRest = false>
void expect_right(int text, const std::string& rest) {
  chosen_text = text;
  chosen_quick = bytes_of(kElement) == 2;
  const std::string line = std::string("fwdbwd ") + name_of(kElement) + " " + rest + " d" +
                           std::to_string(kDim) + " " + kTexts[text];
  expect_both_right<with_text(portable_forward(kElement, kDim, kVarlen), kRest),
                    with_text(portable_backward(kElement, kDim, kVarlen), kRest)>(line);
}

TEST(EmulatedUserText, OfEveryTextMeetsTheRule) {
  for (int text = 0; text < 4; ++text) {
    expect_right<DType::bf16, 64>(text, "b2 hq4 hk2 sq70 sk100");
    expect_right<DType::bf16, 64>(text, "causal b1 hq2 hk1 sq100 sk65");
    expect_right<DType::fp32, 32>(text, "window(20,3) b2 hq2 hk2 sq90 sk40");
    expect_right<DType::fp32, 32>(text, "causal scale(-1) b1 hq2 hk2 sq70 sk70");
  }
  expect_right<DType::bf16, 64>(4, "b2 hq4 hk2 sq70 sk100");
  expect_right<DType::bf16, 64>(5, "causal b1 hq2 hk1 sq100 sk165");
}

TEST(EmulatedUserText, OfPackedSequences) {
  for (int text = 0; text < 4; ++text) {
    expect_right<DType::bf16, 64, true>(text,
                                        "causal hq4 hk2 lens(70,1,0,130,65) lens_k(150,1,9,129,0)");
  }
}

TEST(EmulatedUserText, BesideOtherLogits) {
  for (int text = 0; text < 4; ++text) {
    expect_right<DType::bf16, 64, false, true>(
        text, "causal b2 hq4 hk2 sq70 sk100 softcap(4) alibi sink");
  }
}

// The number of a batch is counted from the first of the call's.
TEST(EmulatedUserText, BatchesAreNumberedFromWhereACallSays) {
  chosen_text = 0;
  Tensors t(std::string("fwd bf16 b2 hq4 hk2 sq70 sk100 d64 ") + kTexts[0], 5);
  ForwardArgs pointers = t.forward_args();
  pointers.logits.dropout_batch = 3;
  constexpr ForwardConfig kConfig = with_text(portable_forward(DType::bf16, 64));
  run_all(forward_launches(t.p, kConfig), with_pointers(kernel_args(t.p, kConfig), pointers),
          [](const std::string&, const KernelArgs& args) { sm80_forward<kConfig>(args); });
  expect_met(check_forward(t.p, pointers), "from batch 3 on");
  EXPECT_FALSE(check_forward(t.p, t.forward_args()).ok);
}

}  // namespace
}  // namespace dfa
