#include "dfa/problem.h"

#include <gtest/gtest.h>

#include "dfa/error.h"
#include "spec/dropout.h"

namespace dfa {
namespace {

std::string error_of(std::string_view line) {
  try {
    parse_problem(line);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Problem, TheCanonicalLineIsAFixedPoint) {
  for (const char* line : {
           "fwd bf16 causal b2 hq8 hk2 sq1000 sk1024 d128",
           "bwd fp32 b1 hq1 hk1 sq1 sk1 d8 dv16",
           "fwdbwd fp16 b3 hq6 hk2 sq17 sk33 d64 window(4,7) deterministic scale(0.25)",
           "fwd fp32 b2 hq4 hk4 sq8 sk8 d16 layout(bshd)",
           "fwd bf16 causal b1 hq8 hk8 sq9 sk9 d64 chunk(4)",
           "fwd bf16 b1 hq8 hk8 sq9 sk9 d64 chunk(1099511627776)",
           "fwd bf16 b1 hq8 hk8 sq9 sk9 d64 window(4,7) chunk(3) deterministic",
           "fwdbwd bf16 causal b1 hq8 hk8 sq9 sk9 d64 prefix(5)",
           "bwd fp16 causal hq4 hk2 d64 prefix(2) lens(3,4) sink",
           "fwd bf16 causal b1 hq8 hk8 sq9 sk9 d64 scale(0.5) softcap(30) alibi sink",
           "fwd bf16 b2 hq8 hk8 sq9 sk9 d64 bias(b,h)",
           "fwd fp16 b1 hq8 hk8 sq9 sk9 d64 bias(1,h,fp32)",
           "fwd fp32 b1 hq8 hk8 sq9 sk9 d64 alibi bias(b,1,1,k,bf16) sink",
           "bwd fp16 hq4 hk2 d64 lens(3,4) softcap(0.5) sink",
           "fwdbwd bf16 causal b1 hq8 hk8 sq9 sk9 d64 sink dropout(0.1,7)",
           "fwd bf16 b1 hq8 hk8 sq9 sk9 d64 dropout(0.25,18446744073709551615)",
           "fwd bf16 causal hq4 hk2 d64 lens(3,4) lens_k(40,16) page(16)",
           "fwd bf16 b4 hq4 hk2 sq1 sk4096 d64 packed(4,320) page(16) sink",
           "fwd bf16 causal b1 hq8 hk8 sq900 sk900 d64 blocks(random,0.25,7)",
           "fwd bf16 b2 hq8 hk8 sq90 sk90 d64 softcap(3) sink "
           "blocks(random,0.1,7,64x32,b,h,partial)",
           "fwdbwd bf16 b2 hq8 hk8 sq90 sk90 d64 blocks(64x32,h,partial)",
           "fwd fp32 b2 hq4 hk4 sq8 sk8 d16 strides_q(4096,512,32) strides_o(2048,256,32)",
       }) {
    EXPECT_EQ(to_line(parse_problem(line)), line);
  }
}

TEST(Problem, ShorthandsAndDefaults) {
  const Problem p = parse_problem("fwd bf16 causal h16 s1024 d64");
  EXPECT_EQ(p.b, 1);
  EXPECT_EQ(p.hq, 16);
  EXPECT_EQ(p.hk, 16);
  EXPECT_EQ(p.sk, 1024);
  EXPECT_EQ(p.dv, 64);
  EXPECT_DOUBLE_EQ(p.softmax_scale(), 0.125);
  for (const char* side : {"9223372036854775807", "2199023255552"}) {
    const std::string no_limit = side;
    EXPECT_EQ(parse_problem("fwd fp32 h1 s8 d8 window(-1," + no_limit + ")").mask, kFull);
    EXPECT_EQ(parse_problem("fwd fp32 h1 s8 d8 window(" + no_limit + ",0)").mask, kCausal);
  }
  EXPECT_EQ(parse_problem("fwd fp32 h1 s8 d8 window(2199023255551,3)").mask,
            (Mask{2199023255551, 3}));
  EXPECT_EQ(parse_problem("fwd fp32 h1 s8 d8 window(-1,-1)").mask, kFull);
  EXPECT_EQ(parse_problem("fwd fp32 causal h1 s8 d8 window(3,5)").mask, (Mask{3, 0}));
}

TEST(Problem, ErrorsNameTheTokenAndWhatIsAccepted) {
  EXPECT_NE(error_of("fwd bf16 h8 s8 d12").find("d=12"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 s8 d584 dv512").find("d=584"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 s8 d576").find("dv=576"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 s8 d64 dv520").find("8 to 512"), std::string::npos);
  for (const char* pass : {"bwd", "fwdbwd"}) {
    EXPECT_NE(error_of(std::string(pass) + " bf16 h8 s8 d576 dv512").find("forward alone to 576"),
              std::string::npos);
  }
  EXPECT_EQ(parse_problem("fwd bf16 h8 s8 d576 dv512").d, 576);
  EXPECT_NE(error_of("fwd bf16 hq8 hk3 s8 d8").find("hk=3"), std::string::npos);
  EXPECT_NE(error_of("fwd bf17 h8 s8 d8").find("'bf17'"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 s0 d8").find("sq=0"), std::string::npos);
  EXPECT_NE(error_of("bf16 h8 s8 d8").find("pass"), std::string::npos);
  EXPECT_NE(error_of("fwd h8 s8 d8").find("dtype"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 d8").find("sqN"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 s8 s9 d8").find("second time"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 s8 d8 window(1)").find("window(L,R)"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 s8 d8 strides_q(64,8,4)").find("row stride"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 s8 d8 strides_o(0,64,8) b2").find("overlap"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 s8 d8 softcap(0)").find("above 0"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 s8 d8 softcap(inf)").find("finite"), std::string::npos);
  EXPECT_NE(error_of("fwd bf16 h8 s8 d8 softcap(2) softcap(3)").find("second"), std::string::npos);
  for (const char* twice : {"scale(1) scale(2)", "layout(bhsd) layout(bshd)",
                            "strides_q(64,64,8) strides_q(99,64,8)", "packed(8,8) packed(9,9)"}) {
    const std::string line = std::string("fwd bf16 h1 s8 d8 ") + twice;
    EXPECT_NE(error_of(line).find("a second"), std::string::npos) << line;
  }
  for (const char* odd : {"window(1,2,x)", "window(1,,2)", "window(1,2,)", "strides_q(64,64,8,8)",
                          "strides_q(64,64,8,x)", "packed(8,8,x)"}) {
    const std::string line = std::string("fwd bf16 h1 s8 d8 ") + odd;
    EXPECT_NE(error_of(line).find("is not of the form"), std::string::npos) << line;
  }
  EXPECT_NE(error_of("fwd bf16 h99999999999 s99999999999 d8"), "");
  EXPECT_NE(error_of(""), "");
}

// Beyond them fp32, of the engines and of the judge's yardstick, has 0 or infinity: what is wrong
// would pass.
TEST(Problem, ScaleAndSoftcapAreWhatFp32Holds) {
  for (const char* odd : {"scale(1e40)", "scale(-1e39)", "scale(1e-40)", "scale(nan)", "scale(inf)",
                          "softcap(1e-31)", "softcap(1e-300)", "softcap(1e31)", "softcap(nan)"}) {
    const std::string line = std::string("fwd fp32 h1 s8 d8 ") + odd;
    EXPECT_NE(error_of(line).find("accepted: a finite number"), std::string::npos) << line;
  }
  for (const char* last : {"scale(1e38)", "scale(-2e-38)", "softcap(8e-31)", "softcap(1.2e30)"}) {
    EXPECT_EQ(error_of(std::string("fwd fp32 h1 s8 d8 ") + last), "") << last;
  }
}

TEST(Problem, DropoutIsAProbabilityAndASeed) {
  const std::string line = "fwd bf16 b1 hq8 hk8 sq8 sk8 d64";
  for (const char* odd :
       {"(1,2)", "(-0.1,2)", "(1.5,2)", "(nan,2)", "(inf,2)", "(0.1)", "(,2)", "(0.1,)", "()",
        "(0.1,-1)", "(0.1,0.5)", "(0.1,18446744073709551616)", "(0.1,2,3)", "(0.1,x)"}) {
    EXPECT_NE(error_of(line + " dropout" + odd).find("is not of the form dropout(P,SEED)"),
              std::string::npos)
        << odd;
  }
  EXPECT_NE(error_of(line + " dropout(0.1,2) dropout(0.1,2)").find("a second dropout"),
            std::string::npos);
  for (const char* none : {" dropout(0,5)", " dropout(-0,5)", " dropout(0.0,0)"}) {
    EXPECT_EQ(to_line(parse_problem(line + none)), line) << none;
  }
  EXPECT_NE(error_of("fwd fp32 b1 h1 sq1 sk2147483649 d8 dropout(0.1,2)"), "");
  EXPECT_FALSE(parse_problem(line + " dropout(0.1,2)").plain());
}

// Of 2^16 numbers at least one keeps a probability, and one does not.
TEST(Problem, DropoutIsInStepsOfSixteenBits) {
  Problem p = parse_problem("fwd fp32 h1 s8 d8");
  EXPECT_FALSE(dropout_of(p).drops());
  for (const auto& [probability, kept] :
       {std::pair{0.5, 32768u}, {0.1, 58982u}, {1e-9, 65535u}, {1 - 1e-9, 1u}, {0x1p-16, 65535u}}) {
    p.dropout = probability;
    EXPECT_EQ(dropout_of(p).kept, kept);
    EXPECT_FLOAT_EQ(dropout_of(p).factor, 65536.0f / static_cast<float>(kept));
  }
}

TEST(Problem, ChunksAndPrefixesAreRefusedByName) {
  const auto error = [](const char* rest) {
    return error_of(std::string("fwd bf16 h8 s8 d8 ") + rest);
  };
  for (const std::string name : {"chunk", "prefix"}) {
    for (const char* odd : {"(0)", "(-1)", "(1099511627777)", "(9223372036854775807)",
                            "(9223372036854775808)", "(2.5)", "(x)", "()", "(1,2)", "(nan)"}) {
      EXPECT_NE(error(("causal " + name + odd).c_str()).find(name + "(N), N from 1 to 2^40"),
                std::string::npos)
          << name << odd;
    }
    EXPECT_NE(error(("causal " + name + "(2) " + name + "(3)").c_str()).find("a second " + name),
              std::string::npos);
  }
  EXPECT_NE(error("causal chunk(2) prefix(3)").find("do not go together"), std::string::npos);
  for (const char* odd : {"prefix(3)", "full prefix(3)", "window(2,0) prefix(3)",
                          "causal window(2,0) prefix(3)", "window(-1,1) prefix(3)"}) {
    EXPECT_NE(error(odd).find("prefix goes with a causal mask"), std::string::npos) << odd;
  }
  Problem p = parse_problem("fwd bf16 causal h8 s8 d8");
  for (const Mask odd : {Mask{-1, 0, -1}, Mask{-1, 0, 0, -1}, Mask{-1, 0, 1LL << 62}}) {
    p.mask = odd;
    EXPECT_THROW(validate(p), InvalidArgument);
  }
}

TEST(Mask, OnlyWindowsAreFullOrCausal) {
  EXPECT_FALSE((Mask{-1, -1, 4}).is_full());
  EXPECT_FALSE((Mask{-1, 0, 4}).is_causal());
  EXPECT_FALSE((Mask{-1, 0, 0, 4}).is_causal());
  EXPECT_NE((Mask{-1, 0, 4}), kCausal);
  EXPECT_EQ(within_reach({1LL << 62, 0, 4, 0}), (Mask{-1, 0, 4, 0}));
}

// Said pair by pair, without a division: chunks are looked for from position 0 on.
bool is_in_chunk(const Mask& mask, int position, int key) {
  for (int begin = 0; mask.chunk > 0; begin += static_cast<int>(mask.chunk)) {
    if (position < begin) return false;
    if (position < begin + mask.chunk) return key >= begin && key < begin + mask.chunk;
  }
  return true;
}

TEST(Mask, RangesAgreeWithTheDefinitionAndItsTranspose) {
  for (const Mask mask :
       {kFull, kCausal, Mask{2, 3}, Mask{0, 0}, Mask{5, -1}, Mask{-1, -1, 3}, Mask{-1, 0, 3},
        Mask{-1, 0, 1}, Mask{-1, 0, 100}, Mask{2, 1, 4}, Mask{-1, 1, 4}, Mask{-1, 0, 0, 1},
        Mask{-1, 0, 0, 4}, Mask{-1, 0, 0, 1LL << 40}, Mask{-1, -1, 1LL << 40}}) {
    for (const auto& [sq, sk] : {std::pair{5, 9}, {9, 5}, {7, 7}, {1, 4}, {20, 9}, {13, 17}}) {
      for (int i = 0; i < sq; ++i) {
        for (int j = 0; j < sk; ++j) {
          const int center = i + sk - sq;
          const bool visible = j < mask.prefix || ((mask.left < 0 || j >= center - mask.left) &&
                                                   (mask.right < 0 || j <= center + mask.right) &&
                                                   is_in_chunk(mask, center, j));
          EXPECT_EQ(visible, j >= mask.key_begin(i, sq, sk) && j < mask.key_end(i, sq, sk));
          EXPECT_EQ(visible, i >= mask.query_begin(j, sq, sk) && i < mask.query_end(j, sq, sk));
        }
      }
    }
  }
}

}  // namespace
}  // namespace dfa
