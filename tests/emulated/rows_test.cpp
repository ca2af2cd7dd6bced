// The kernel that recomputes rows, on a processor: it agrees with fp64, and sees what is wrong.
#include <gtest/gtest.h>

// Before anything of the kernels:
#include "emulated/warps.h"
// and then:
#include "kernels/check/rows.cuh"
#include "kernels/launch.h"
#include "reference/backend.h"
#include "tensors.h"

namespace dfa {
namespace {

constexpr unsigned kRows = 6;

// Errors of the rows that this seed draws.
template <DType kElement, int kHeld>
std::vector<float> errors_of(Tensors& t, unsigned long long seed) {
  const Problem& p = t.p;
  std::vector<float> errors(kRows, -1.f);
  const RowsArgs args{.args = with_pointers(kernel_args(p), t.forward_args()),
                      .errors = errors.data(),
                      .seed = seed,
                      .rows = p.b * p.hq * p.sq};
  emulated::launch(kRows, kCheckThreads, [&] { check_rows<kElement, kHeld>(args); });
  return errors;
}

std::int64_t place_in_o(const Problem& p, long long row, std::int64_t column) {
  const Strides o = p.o();
  return row / p.sq / p.hq * o.batch + row / p.sq % p.hq * o.head + row % p.sq * o.row + column;
}

template <DType kElement, int kHeld>
void expect_seen(const char* line, float rounding) {
  Tensors t(line, 9);
  const Problem& p = t.p;
  const Backend& truth = reference_backend();
  truth.forward(truth.plan(p, {.backend = "reference"}), t.forward_args(), {});
  for (const float error : errors_of<kElement, kHeld>(t, 3)) {
    EXPECT_GE(error, 0) << line;
    EXPECT_LE(error, rounding) << line;
  }
  // One element of a drawn row is wrong, then not a number.
  const std::int64_t place = place_in_o(p, drawn_row(3, 2, p.b * p.hq * p.sq), p.dv - 1);
  const float right = t.at(t.o, place);
  t.set(t.o, place, right + 0.5f);
  EXPECT_NEAR((errors_of<kElement, kHeld>(t, 3)[2]), 0.5, 0.01) << line;
  t.set(t.o, place, std::nanf(""));
  EXPECT_TRUE(std::isinf(errors_of<kElement, kHeld>(t, 3)[2])) << line;
}

TEST(EmulatedRows, AgreeWithFp64AndSeeWhatIsWrong) {
  expect_seen<DType::fp32, 2>("fwd fp32 b2 hq3 hk1 sq40 sk200 d40 dv64", 1e-5f);
  expect_seen<DType::fp32, 1>("fwd fp32 causal b1 h2 sq70 sk70 d32 layout(bshd)", 1e-5f);
  expect_seen<DType::bf16, 4>("fwd bf16 b1 hq4 hk2 sq90 sk130 d96 window(20,9)", 8e-3f);
  expect_seen<DType::fp16, 8>("fwd fp16 causal b1 h1 sq100 sk60 d256 scale(-0.1)", 2e-3f);
}

TEST(EmulatedRows, InputsThatAreNotFiniteAreNoErrorOfAttention) {
  Tensors t("fwd fp32 b1 h1 sq4 sk8 d16", 1);
  t.set(t.v, 0, std::nanf(""));
  const Backend& truth = reference_backend();
  truth.forward(truth.plan(t.p, {.backend = "reference"}), t.forward_args(), {});
  for (const float error : errors_of<DType::fp32, 1>(t, 1)) EXPECT_LE(error, 1e-6f);
}

}  // namespace
}  // namespace dfa
