#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "attention/variants.h"
#include "base/random.h"

namespace dfa {
namespace {

// A tensor in the middle of guard bytes, 64-byte aligned, NaN where no element lives.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes, std::size_t guard = 4096)
      : bytes_(bytes), all_(bytes + 2 * guard + 64, std::byte{0xff}) {
    void* start = all_.data() + guard;
    std::size_t space = all_.size() - guard;
    start_ = static_cast<std::byte*>(std::align(64, bytes, start, space));
  }
  std::byte* data() { return start_; }

  // Every byte outside the tensor is as it was.
  bool guards_intact() const {
    for (const std::byte* at = all_.data(); at < all_.data() + all_.size(); ++at) {
      if ((at < start_ || at >= start_ + bytes_) && *at != std::byte{0xff}) return false;
    }
    return true;
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> all_;
  std::byte* start_ = nullptr;
};

struct Field {
  Strides strides;
  std::int64_t h, s, d;
};

// Calls visit(index of the element) for every element of a tensor.
template <typename Visit>
void for_each_element(const Problem& p, const Field& f, Visit&& visit) {
  for (std::int64_t b = 0; b < p.b; ++b) {
    for (std::int64_t h = 0; h < f.h; ++h) {
      for (std::int64_t s = 0; s < f.s; ++s) {
        for (std::int64_t x = 0; x < f.d; ++x) {
          visit(b * f.strides.batch + h * f.strides.head + s * f.strides.row + x);
        }
      }
    }
  }
}

// q k v o, then do dq dk dv in the strides of o q k v; lse and the workspace. Everything starts as
// NaN; only the elements of the inputs are numbers.
class PoisonedTensors {
 public:
  explicit PoisonedTensors(const Plan& plan)
      : p_(plan.problem),
        lse_(static_cast<std::size_t>(p_.b * p_.hq * p_.sq) * sizeof(float)),
        workspace_(plan.workspace_bytes, kThreadScratch) {
    const Field q{p_.q(), p_.hq, p_.sq, p_.d}, k{p_.k(), p_.hk, p_.sk, p_.d},
        v{p_.v(), p_.hk, p_.sk, p_.dv}, o{p_.o(), p_.hq, p_.sq, p_.dv};
    fields_ = {q, k, v, o, o, q, k, v};
    for (const Field& f : fields_) {
      tensors_.emplace_back(static_cast<std::size_t>(span(f) * bytes_of(p_.dtype)));
    }
    const Random random(7);
    for (const std::size_t n : kInputs) {
      for_each_element(p_, fields_[n], [&](std::int64_t i) {
        const auto index = static_cast<std::uint64_t>(i) + 1000000 * n;
        store_element(tensors_[n].data(), p_.dtype, i, random.normal(index));
      });
    }
  }

  void run(const Plan& plan) {
    auto& t = tensors_;
    auto* lse = reinterpret_cast<float*>(lse_.data());
    const std::vector<std::string> before = contents(kInputs);
    forward(plan, {t[0].data(), t[1].data(), t[2].data(), t[3].data(), lse, workspace_.data()});
    const std::vector<std::string> result = contents({3});
    backward(plan, {t[0].data(), t[1].data(), t[2].data(), t[3].data(), lse, t[4].data(),
                    t[5].data(), t[6].data(), t[7].data(), workspace_.data()});
    EXPECT_EQ(before, contents(kInputs)) << "an input was changed";
    EXPECT_EQ(result, contents({3})) << "the backward changed o";
  }

  void expect_clean() {
    for (std::size_t n = 0; n < tensors_.size(); ++n) {
      EXPECT_TRUE(tensors_[n].guards_intact()) << "around tensor " << n;
      std::int64_t elements = 0, numbers = 0, everywhere = 0;
      for_each_element(p_, fields_[n], [&](std::int64_t i) {
        ++elements;
        numbers += std::isfinite(load_element(tensors_[n].data(), p_.dtype, i));
      });
      for (std::int64_t i = 0; i < span(fields_[n]); ++i) {
        everywhere += std::isfinite(load_element(tensors_[n].data(), p_.dtype, i));
      }
      EXPECT_EQ(numbers, elements) << "NaN in tensor " << n;
      EXPECT_EQ(everywhere, elements) << "written into the gaps of tensor " << n;
    }
    EXPECT_TRUE(lse_.guards_intact());
    EXPECT_TRUE(workspace_.guards_intact());
    for (std::int64_t row = 0; row < p_.b * p_.hq * p_.sq; ++row) {
      const bool sees_nothing = p_.mask.key_begin(row % p_.sq, p_.sq, p_.sk) >=
                                p_.mask.key_end(row % p_.sq, p_.sq, p_.sk);
      const float lse = load_element(lse_.data(), DType::fp32, row);
      EXPECT_TRUE(sees_nothing ? std::isinf(lse) && lse < 0 : std::isfinite(lse)) << "row " << row;
    }
  }

 private:
  // Wide enough to catch a thread whose scratch was never counted.
  static constexpr std::size_t kThreadScratch = 1 << 20;
  const std::vector<std::size_t> kInputs{0, 1, 2, 4};

  std::int64_t span(const Field& f) const { return extent(f.strides, p_.b, f.h, f.s, f.d); }

  std::vector<std::string> contents(const std::vector<std::size_t>& tensors) {
    std::vector<std::string> bytes;
    for (const std::size_t n : tensors) {
      const auto size = static_cast<std::size_t>(span(fields_[n]) * bytes_of(p_.dtype));
      bytes.emplace_back(reinterpret_cast<const char*>(tensors_[n].data()), size);
    }
    return bytes;
  }

  Problem p_;
  std::vector<Field> fields_;
  std::vector<Guarded> tensors_;
  Guarded lse_, workspace_;
};

TEST(Poison, NothingIsReadOrWrittenOutsideTheTensors) {
  for (const char* line :
       {"fwdbwd bf16 causal b2 hq2 hk1 sq65 sk70 d40 strides_q(12000,5600,80) "
        "strides_k(9000,9000,88) strides_v(3600,3600,48) strides_o(10400,5200,80)",
        "fwdbwd fp32 b2 hq2 hk2 sq33 sk17 d8 dv24 layout(bshd)",
        "fwdbwd fp16 b1 hq3 hk1 sq19 sk129 d72 strides_q(9000,3000,80) strides_k(9999,9675,75)",
        "fwdbwd fp32 causal b1 hq2 hk1 sq70 sk20 d16 strides_o(3000,1500,20)",
        "fwdbwd bf16 b1 hq1 hk1 sq150 sk80 d64 window(3,-1)",
        "fwdbwd bf16 b1 hq1 hk1 sq1 sk1 d8 deterministic"}) {
    const Problem problem = parse_problem(line);
    for (Variant variant : variants_of(problem)) {
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(variant.name + ", threads " + std::to_string(threads) + ", " + line);
        variant.options.threads = threads;
        const Plan plan = dfa::plan(problem, variant.options);
        PoisonedTensors tensors(plan);
        tensors.run(plan);
        tensors.expect_clean();
      }
    }
  }
}

// Long enough that more than one thread gets tasks where the machine has them.
TEST(Poison, EveryThreadStaysInsideTheWorkspace) {
  const Problem problem = parse_problem("fwdbwd fp32 b1 h4 s512 d64");
  for (Variant variant : variants_of(problem)) {
    SCOPED_TRACE(variant.name);
    variant.options.threads = 4;
    const Plan plan = dfa::plan(problem, variant.options);
    PoisonedTensors tensors(plan);
    tensors.run(plan);
    tensors.expect_clean();
  }
}

}  // namespace
}  // namespace dfa
