// What plans take where nothing is asked for: compiled without a spill.
#include "kernels_full/compile_test.h"

#include <set>

#include "compilers/default_kernels.h"
#include "plan/pack_gqa.h"
#include "plan/select_split_kv.h"

namespace dfa::cuda {
namespace {

TEST_P(CompileTest, DefaultsOfEveryHeadDimAndElementCompileWithoutSpills) {
  if (!kEveryKernel && GetParam().number == 90) GTEST_SKIP() << "ProblemFiles has Hopper's";
  compile(defaults());
}

// Forced on a later machine they are compiled for that.
TEST_P(CompileTest, KernelsForSm75CompileEverywhere) {
  if (elsewhere()) GTEST_SKIP() << "sm_80 shows it";
  for (const DType type : {DType::fp16, DType::fp32}) {
    for (const int d : cases({64}, {128})) {
      const Problem p{.dtype = type, .sq = 64, .sk = 64, .d = d, .dv = d};
      compile(forward_launches(p, gpu_forward_base("target=cuda_sm75", p, limits_)));
      compile(backward_launches(p, gpu_backward_base("target=cuda_sm75", p, limits_)));
    }
  }
}

TEST_P(CompileTest, KeysInPagesCompileWithoutSpills) {
  if (!kEveryKernel && GetParam().number == 90)
    GTEST_SKIP() << "HoppersPages and ProblemFiles have them";
  for (const DType type : {half(), DType::fp32}) {
    for (const int d : head_dims()) {
      for (const char* logits : {"", " softcap(3) alibi sink"}) {
        if (!kEveryKernel && (d == 128) != (*logits != '\0')) continue;
        for (const char* lens : {" lens(64,64)", " lens(640,64)"}) {
          const Problem p = parse_problem(std::string("fwd ") + name_of(type) + " h1 d" +
                                          std::to_string(d) + lens + " page(16)" + logits);
          const ForwardConfig config = select_forward(p, limits_);
          ASSERT_TRUE(config.paged);
          ASSERT_EQ(config.split_kv,
                    has_few_queries(p) && !split_kv_candidates(p, limits_).empty());
          if (validate_config(config, p, limits_)) compile(forward_launches(p, config));
        }
      }
    }
  }
}

// The first of each kind of problem: the others are in kernels_all.
TEST_P(CompileTest, HoppersPagesCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const char* type : cases({"bf16"}, {"fp16"})) {
    for (const char* d : cases({"64", "128", "256"}, {"96", "192"})) {
      for (const char* logits : cases({" softcap(3) alibi sink"}, {""})) {
        for (const char* lens : {" lens(640,640)", " lens(90,90)"}) {
          // Of d 256 no kernel of Hopper's takes both.
          const bool either = std::string(d) == "256" && *logits != 0;
          const Problem p = parse_problem(std::string("fwd ") + type + " causal h1 d" + d + lens +
                                          " page(16)" + (either ? " softcap(3) sink" : logits));
          const std::vector<ForwardConfig> all = sm90_candidates(p, limits_);
          ASSERT_FALSE(all.empty()) << to_line(p);
          compile(forward_launches(p, all[0]));
        }
      }
    }
  }
}

// A mask and a logit transform beside all else, packed, and a text of many functions.
TEST_P(CompileTest, TextsCompileWithoutSpills) {
  if (sm75()) GTEST_SKIP() << "texts take cuda_sm80";
  compile_variants(
      {" causal hq4 hk2 lens(64,33) mask_mod(kv_idx >= q_idx - 20 * b && kv_idx % 5 != h) "
       "score_mod(score * exp(-0.1f * h)) softcap(3) alibi sink",
       " b1 h2 s64 score_mod(kv_idx % 7 == 0 ? -INFINITY : sqrt(1 + score * score) - 30.0f * "
       "tanh(score / 30.0f) - log(2 + abs(min(cos(score), max(score, int(0.5f * b))))))"},
      [](const auto& config) { return config.text; });
}

// Few queries of keys without pages, packed and dense.
TEST_P(CompileTest, SplitsOfKeysWithoutPagesCompileWithoutSpills) {
  if (elsewhere()) GTEST_SKIP() << "sm_80 shows it";
  if (sm75()) GTEST_SKIP() << "cuda_sm75 has no split_kv";
  for (const int d : head_dims()) {
    for (const char* rest : {" hq4 hk1 lens(1,2)", " causal b2 hq4 hk1 sq2 sk64",
                             " hq4 hk4 b2 sq2 sk64 softcap(3) alibi sink"}) {
      const Problem p = parse_problem("fwd bf16 d" + std::to_string(d) + rest);
      const std::vector<ForwardConfig> all = split_kv_candidates(p, limits_);
      ASSERT_FALSE(all.empty()) << to_line(p);
      compile(forward_launches(p, all[0]));
    }
  }
}

// One tile of 16 rows and one of 32, where there are registers for it.
TEST_P(CompileTest, CachesInE4m3CompileWithoutSpills) {
  if (elsewhere()) GTEST_SKIP() << "sm_80 shows it";
  if (sm75()) GTEST_SKIP() << "cuda_sm75 has no split_kv";
  const auto compile_cache = [&](const std::string& rest) {
    compile_defaults("fwd " + rest + " page(16) kv(e4m3)");
  };
  for (const char* few : {" hq4 hk1 lens(1,2)", " causal hq8 hk1 lens(4,3)"}) {
    for (const char* dims :
         cases({"d64", "d192 dv128", "d256"}, {"d16", "d32", "d96", "d128", "d192", "d64 dv256"})) {
      compile_cache(std::string("bf16 ") + dims + few);
    }
    for (const char* dims : cases({"d128"}, {"d64", "d256"})) {
      compile_cache(std::string("bf16 ") + dims + few + " softcap(3) sink");
    }
    compile_cache(std::string("fp16 d128") + few + " alibi");
  }
}

TEST_P(CompileTest, ChunksAndPrefixesCompileWithoutSpills) {
  compile_variants({" causal h1 s64 prefix(9)", " causal h1 lens(64,64) chunk(9)"},
                   [](const auto& config) { return config.ranges; });
}

TEST_P(CompileTest, DropoutCompilesWithoutSpills) {
  compile_variants({" causal h1 s64 dropout(0.1,3)", " causal h1 lens(64,64) dropout(0.1,3)"},
                   [](const auto& config) { return config.dropout; });
}

TEST_P(CompileTest, ListsOfBlocksCompileWithoutSpills) {
  compile_variants({" h1 s256 blocks(128x128,partial)", " causal h1 s64 blocks(48x16)",
                    " h1 s64 softcap(3) alibi sink blocks(128x64,b,h,partial)"},
                   [](const auto& config) { return config.blocks; });
}

// The first of each kind of problem: the others are in kernels_all.
TEST_P(CompileTest, HoppersListsOfBlocksCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const char* type : cases({"bf16"}, {"fp16"})) {
    for (int row = 0; const char* d : cases({"64", "128", "256"}, {"96", "192"})) {
      for (int place = row++;
           const char* rest : {" blocks(128x128,partial)", " blocks(64x64,b,h)",
                               " softcap(3) alibi sink blocks(128x128,partial)"}) {
        if (!taken(place++)) continue;
        const Problem p =
            parse_problem(std::string("fwd ") + type + " causal h1 s640 d" + d + rest);
        const std::vector<ForwardConfig> all = sm90_candidates(p, limits_);
        ASSERT_FALSE(all.empty()) << to_line(p);
        compile(forward_launches(p, all[0]));
      }
    }
  }
}

TEST_P(CompileTest, HoppersBackwardOfListsOfBlocksCompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const char* type : cases({"bf16"}, {"fp16"})) {
    for (const char* dims : cases({"d64", "d128"}, {"d96", "d96 dv64", "d128 dv64", "d128 dv96"})) {
      for (const char* rest : {" blocks(128x128,partial)", " sink blocks(128x256,b,h)"}) {
        const Problem p =
            parse_problem(std::string("bwd ") + type + " causal h1 s640 " + dims + rest);
        const std::vector<BackwardConfig> all = sm90_backward_candidates(p, limits_);
        ASSERT_FALSE(all.empty()) << to_line(p);
        for (const BackwardConfig& config : all) compile(backward_launches(p, config));
      }
    }
  }
}

TEST_P(CompileTest, HoppersChunksAndPrefixesCompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const char* d : cases({"128"}, {"64", "256"})) {
    for (const char* rest :
         {" hq8 hk2 s8192 chunk(2048)", " softcap(3) alibi sink h2 s640 prefix(9)",
          " h2 chunk(64) lens(640,9)"}) {
      const std::string dims = std::string(" causal d") + d + rest;
      const Problem forward = parse_problem("fwd bf16" + dims);
      const std::vector<ForwardConfig> all = sm90_candidates(forward, limits_);
      ASSERT_FALSE(all.empty()) << to_line(forward);
      compile(forward_launches(forward, all[0]));
      const Problem backward = parse_problem("bwd fp16" + dims);
      const std::vector<BackwardConfig> gradients = sm90_backward_candidates(backward, limits_);
      // Its backward of d 64 makes no logits.
      ASSERT_EQ(gradients.empty(), backward.d == 64 && backward.softcap != 0) << to_line(backward);
      for (const BackwardConfig& config : gradients) compile(backward_launches(backward, config));
    }
  }
}

TEST_P(CompileTest, HeadsInSlicesCompileWithoutSpills) {
  if (elsewhere()) GTEST_SKIP() << "sm_80 shows it";
  if (sm75()) GTEST_SKIP() << "cuda_sm75 has d and dv up to 256";
  for (const char* line : cases(
           {"fwdbwd bf16 h1 s64 d320",
            "fwd bf16 h1 d576 dv512 lens(64,64) page(16) softcap(3) sink",
            "fwdbwd bf16 causal h1 d512 lens(64,64) chunk(9)", "fwdbwd fp32 h1 s64 d512"},
           {"fwdbwd bf16 h1 s64 d512", "fwdbwd bf16 h1 s64 d64 dv512", "fwd bf16 h1 s64 d576 dv512",
            "fwdbwd tf32 h1 s64 d512", "fwd fp32 h1 s64 d576 dv512"})) {
    compile_defaults(line);
  }
}

TEST_P(CompileTest, HoppersHeadsAbove256CompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const char* line :
       cases({"fwdbwd bf16 h2 s200 d512", "fwdbwd fp16 causal hq4 hk2 d512 dv384 lens(64,64) sink",
              "fwd bf16 causal hq6 hk1 s200 d576 dv512 softcap(3) alibi sink"},
             {"fwdbwd fp16 causal h2 s200 d264", "fwdbwd bf16 h2 s200 d384 dv512 window(9,9)",
              "fwd fp16 h2 d512 lens(64,64) chunk(9) alibi", "fwd bf16 hq6 hk2 s20 d512"})) {
    compile_defaults(line);
  }
}

// Whether plans take them or not: keys dealt out on the host, and by the lengths on the device.
TEST_P(CompileTest, HoppersSplitsOfHeadsAbove256CompileWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const char* line : cases(
           {"fwd bf16 b1 hq128 hk1 sq1 sk16384 d576 dv512",
            "fwd bf16 causal hq128 hk1 lens(1,2) lens_k(900,9000) d576 dv512 page(64)",
            "fwd fp16 causal hq6 hk2 lens(1,2) lens_k(900,90) d512 dv384 page(16) softcap(3) sink"},
           {"fwd fp16 causal b1 hq6 hk1 sq9 sk16384 d384 softcap(3) alibi sink",
            "fwd bf16 hq128 hk1 lens(1,2) lens_k(900,9000) d576 dv512",
            "fwd fp16 causal hq4 hk2 lens(1,2) lens_k(900,90) d512 softcap(3) alibi sink"})) {
    const Problem p = with_pack_gqa(parse_problem(line));
    const std::vector<ForwardConfig> all = sm90_candidates(p, limits_);
    ASSERT_FALSE(all.empty()) << line;
    EXPECT_GT(all[0].num_splits, 0) << line;
    compile(forward_launches(p, all[0]));
  }
}

TEST_P(CompileTest, HoppersE4m3CompilesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const char* dims :
       cases({"d64", "d128", "d256"}, {"d96", "d192", "d192 dv128", "d64 dv256"})) {
    for (const char* rest : {"h2 s200", "b4 h16 s4096", "causal b4 h16 s4096",
                             "causal hq16 hk2 sq16 sk4096", "causal hq4 hk2 lens(640,640)"}) {
      compile_defaults(std::string("fwd e4m3 ") + rest + " " + dims);
    }
    for (const char* rows : {"64", "128"}) {  // whether plans take them yet or not
      const Problem p = parse_problem(std::string("fwd e4m3 causal h2 s4096 ") + dims +
                                      " descale_rows(" + rows + ")");
      const std::vector<ForwardConfig> all = sm90_candidates(p, limits_);
      ASSERT_FALSE(all.empty()) << to_line(p);
      compile(forward_launches(p, all[0]));
    }
  }
}

// Whether plans take them yet or not.
TEST_P(CompileTest, HoppersE4m3TransposesValuesWithoutSpills) {
  if (limits_.highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const char* dims : cases({"d64", "d128", "d256"}, {"d96", "d192"})) {
    for (const char* rest : {"h2 s200", "causal b4 h16 s4096", "causal hq16 hk2 sq16 sk4096",
                             "causal hq4 hk2 lens(640,640)", "causal h2 s4096 descale_rows(128)"}) {
      const Problem p = with_pack_gqa(parse_problem(std::string("fwd e4m3 ") + rest + " " + dims));
      for (ForwardConfig config : sm90_candidates(p, limits_)) {
        config.transpose_values = true;
        if (validate_config(config, p, limits_)) compile(forward_launches(p, config));
        if (!kEveryKernel) break;
      }
    }
  }
}

DFA_ON_ARCHITECTURES(CompileTest);

// Side by side: every part is a process of its own.
constexpr int kParts = 4;
class ProblemFiles : public testing::TestWithParam<int> {};

// A kernel's function, the size of its elements and about how wide its heads are: those of one kind
// differ in tiles and in what is done to logits.
std::string kind_of(const KernelLaunch& launch) {
  const std::string& entry = launch.entry;
  const auto said = [&](const std::string& field) {
    const std::size_t at = entry.find(field);
    return at == std::string::npos ? std::string() : entry.substr(at + field.size(), 4);
  };
  const std::string element = said("DType::");
  const std::string wide = said(".head_dim=");
  int dim = wide.empty() ? 0 : std::stoi(wide);
  for (const int most : {64, 128, 256}) {
    if (dim > 0 && dim <= most) dim = -most;
  }
  return entry.substr(0, entry.find('<')) + (element == "fp16" ? "bf16" : element) +
         std::to_string(dim);
}

TEST_P(ProblemFiles, KernelsTheyTakeOnHopperCompileWithoutSpills) {
  TestKernels kernels;
  DFA_NEEDS_NVRTC(kernels);
  const auto defaults = defaults_of_problem_files(gpu_limits(90));
  EXPECT_GE(defaults.size(), 600u);
  std::set<std::string> kinds;
  int index = 0;
  for (const auto& [entry, kernel] : defaults) {
    if (!kEveryKernel && !kinds.insert(kind_of(kernel.launch)).second) continue;
    if (index++ % kParts != GetParam()) continue;
    if (!kernel.launch.preamble.empty()) continue;  // CompileTest.Texts… has some
    SCOPED_TRACE(kernel.problem);
    compile_without_stack(kernels, request_of(kernel.launch, "sm_90a"));
  }
  EXPECT_GE(kEveryKernel ? defaults.size() : kinds.size(), 50u);
}

INSTANTIATE_TEST_SUITE_P(Parts, ProblemFiles, testing::Range(0, kParts));

}  // namespace
}  // namespace dfa::cuda
