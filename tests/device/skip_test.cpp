// Hopper's forward that leaves out tiles whose weights round to nothing, on a real device.
#include <algorithm>
#include <cmath>

#include "base/element.h"
#include "device/device_case.h"
#include "spec/config_text.h"
#include "spec/sm90_legality.h"
#include "tensors.h"

namespace dfa {
namespace {

class Skip : public Device, public testing::WithParamInterface<const char*> {};

// Texts of 64 tokens in one sequence: a logit within one is 256 / sqrt(d) (natural) above others,
// so that with d 64 most tiles count for nothing.
Tensors packed_texts(const std::string& line) {
  Tensors t(line, 5);
  for (auto* tensor : {&t.q, &t.k}) {
    for (std::int64_t row = 0; row < t.count(*tensor) / t.p.d; ++row) {
      const std::int64_t at = row * t.p.d + row % t.p.sq / 64 % t.p.d;
      t.set(*tensor, at, t.at(*tensor, at) + 16.f);
    }
  }
  return t;
}

// The largest change of o by skipping, beside the largest element of v.
double change(const Tensors& t, const AlignedBuffer& a, const AlignedBuffer& b) {
  double most = 0, largest = 0;
  for (std::int64_t i = 0; i < t.count(t.o); ++i) {
    most = std::max(most, std::fabs(static_cast<double>(load_element(a.data(), t.p.dtype, i)) -
                                    static_cast<double>(load_element(b.data(), t.p.dtype, i))));
  }
  for (std::int64_t i = 0; i < t.count(t.v); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(t.at(t.v, i))));
  }
  return most / largest;
}

TEST_P(Skip, TilesThatCountForNothingChangeNothingBeyondARounding) {
  if (cuda().limits().highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (const Tensors& t : {Tensors(GetParam(), 5), packed_texts(GetParam())}) {
    bench::Workload workload(t.p, "cuda", 5, {.q = t.q.data(), .k = t.k.data(), .v = t.v.data()});
    const auto run = [&](const char* config) {
      const bench::Prepared plans =
          bench::prepare(t.p, {.backend = "cuda", .algorithm = Algorithm::flash, .config = config});
      const CheckReport report = workload.check(plans, {.seed = 5});
      EXPECT_TRUE(report.ok) << GetParam() << " " << config << "\n" << report.summary();
      return workload.outputs();
    };
    const bench::HostOutputs off = run("target=cuda_sm90"), on = run("target=cuda_sm90,skip=true");
    const double unit = t.p.dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
    EXPECT_LE(change(t, off.o, on.o), unit + 0x1p-16) << GetParam();
  }
}

TEST_P(Skip, EveryTileMeetsTheRuleWithTheSameBitsEachTime) {
  if (cuda().limits().highest != Target::cuda_sm90) GTEST_SKIP() << "of 9.0 alone";
  for (ForwardConfig config : sm90_candidates(parse_problem(GetParam()), cuda().limits())) {
    config.skip = true;
    const PlanOptions options{
        .backend = "cuda", .algorithm = Algorithm::flash, .config = to_text(config)};
    EXPECT_TRUE(checked(GetParam(), 7, options));
    expect_same_bits(GetParam(), options, 50);
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, Skip,
                         testing::Values("fwd bf16 b1 h3 s777 d64", "fwd fp16 b1 h3 s777 d64",
                                         "fwd bf16 causal b1 h3 s1300 d64",
                                         "fwd bf16 causal b1 h3 s777 d128",
                                         "fwd bf16 b1 h2 s500 d256"));

}  // namespace
}  // namespace dfa
