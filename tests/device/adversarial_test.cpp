// Logits that leave the range a row's first keys promise, on a real device: what bf16's softmax
// with a fixed reference has to do again.
#include <cstring>

#include "device/device_case.h"
#include "tensors.h"

namespace dfa {
namespace {

// Keys are walked from the last to the first.
struct Kind {
  const char* name;
  void (*fill)(Tensors& t);
};

// column 0 of every row of a tensor, its other columns by `factor`
template <typename Value>
void set_columns(Tensors& t, std::vector<std::byte>& tensor, std::int64_t rows, float factor,
                 const Value& first) {
  for (std::int64_t i = 0; i < t.count(tensor); ++i) {
    const bool leads = i % t.p.d == 0;
    t.set(tensor, i, leads ? first(i / t.p.d % rows) : factor * t.at(tensor, i));
  }
}

const Kind kKinds[] = {
    {"the maximum in the last tile",
     [](Tensors& t) {
       set_columns(t, t.q, t.p.sq, 1.f, [](std::int64_t) { return 3000.f; });
       set_columns(t, t.k, t.p.sk, 1.f, [](std::int64_t key) { return key < 5 ? 1.f : 0.f; });
     }},
    {"a ramp that rises half a nat a key",
     [](Tensors& t) {
       set_columns(t, t.q, t.p.sq, .1f, [](std::int64_t) { return 1.f; });
       const float step = .5f * std::sqrt(static_cast<float>(t.p.d));
       set_columns(t, t.k, t.p.sk, 1.f,
                   [&](std::int64_t key) { return -step * static_cast<float>(key); });
     }},
    {"a ramp over plus and minus 10000",
     [](Tensors& t) {
       set_columns(t, t.q, t.p.sq, 1.f, [](std::int64_t) { return 1.f; });
       const auto last = static_cast<float>(t.p.sk - 1);
       set_columns(t, t.k, t.p.sk, 1.f,
                   [&](std::int64_t key) { return 1e4f - 2e4f * static_cast<float>(key) / last; });
     }},
    {"rows of one hot key",  // of whole numbers, so that no score cancels to its rounding errors
     [](Tensors& t) {
       for (auto* tensor : {&t.q, &t.k}) {
         for (std::int64_t i = 0; i < t.count(*tensor); ++i)
           t.set(*tensor, i, std::round(30 * t.at(*tensor, i)));
       }
     }},
    {"values that overflow beside weights above 1",
     [](Tensors& t) {
       for (std::int64_t i = 0; i < t.count(t.q); ++i) t.set(t.q, i, 6 * t.at(t.q, i));
       const float large = t.p.dtype == DType::bf16 ? 1e30f : 1e4f;
       for (std::int64_t i = 0; i < t.count(t.v); ++i) t.set(t.v, i, large * t.at(t.v, i));
     }},
};

bool same(const AlignedBuffer& a, const AlignedBuffer& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

class Adversarial : public DeviceTest, public testing::WithParamInterface<const char*> {};

TEST_P(Adversarial, LogitsMeetTheRuleAndEveryBudgetGivesTheSameBits) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    Tensors t(GetParam(), 5);
    kind.fill(t);
    measure::ProblemBuffers buffers(t.p, "cuda", 5,
                                    {.q = t.q.data(), .k = t.k.data(), .v = t.v.data()});
    const measure::PassPlans plans =
        measure::prepare(t.p, {.backend = "cuda", .algorithm = Algorithm::flash});
    const CheckReport report = buffers.check(plans, {.seed = 5});
    EXPECT_TRUE(report.ok) << GetParam() << "\n" << report.summary();
    if (plans.forward->forward_sms == 0) continue;
    const measure::HostOutputs all = buffers.outputs();
    buffers.limit_sms(1);
    buffers.run(plans);
    const measure::HostOutputs one = buffers.outputs();
    EXPECT_TRUE(same(all.o, one.o) && same(all.lse, one.lse)) << GetParam();
  }
}

INSTANTIATE_TEST_SUITE_P(
    HeadDims, Adversarial,
    testing::Values("fwd bf16 b1 h3 s777 d64", "fwd bf16 causal b1 hq6 hk2 s777 d64",
                    "fwd bf16 causal b2 h8 s1300 d64", "fwd bf16 causal b1 h3 s777 d96",
                    "fwd bf16 b2 h3 s777 d128", "fwd bf16 causal b1 h4 s2100 d128",
                    "fwd bf16 b1 h3 sq300 sk777 d256", "fwd bf16 causal b1 h3 s777 d256",
                    "fwd fp16 causal b1 h3 s777 d64", "fwd bf16 causal b40 h40 s130 d64"));

}  // namespace
}  // namespace dfa
