#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "attention/variants.h"
#include "base/random.h"

namespace dfa {
namespace {

// A tensor in the middle of guard bytes, 64-byte aligned, NaN where no element lives.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes)
      : bytes_(bytes), all_(bytes + 2 * kGuard + 64, std::byte{0xff}) {
    void* start = all_.data() + kGuard;
    std::size_t space = all_.size() - kGuard;
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
  static constexpr std::size_t kGuard = 4096;
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

TEST(Poison, NothingIsReadOrWrittenOutsideTheTensors) {
  for (const char* line :
       {"fwdbwd bf16 causal b2 hq2 hk1 sq65 sk70 d40 strides_q(12000,5600,80) "
        "strides_k(9000,9000,88) strides_v(3600,3600,48) strides_o(10400,5200,80)",
        "fwdbwd fp32 b2 hq2 hk2 sq33 sk17 d8 dv24 layout(bshd)",
        "fwdbwd fp16 b1 hq3 hk1 sq19 sk129 d72 strides_q(9000,3000,80) strides_k(9999,9675,75)"}) {
    Problem p = parse_problem(line);
    const Field fields[] = {{p.q(), p.hq, p.sq, p.d},
                            {p.k(), p.hk, p.sk, p.d},
                            {p.v(), p.hk, p.sk, p.dv},
                            {p.o(), p.hq, p.sq, p.dv}};
    for (const Variant& variant : variants_of(p)) {
      std::vector<Guarded> t;  // q k v o, then do dq dk dv in the strides of o q k v
      for (const int field : {0, 1, 2, 3, 3, 0, 1, 2}) {
        const Field& f = fields[field];
        t.emplace_back(
            static_cast<std::size_t>(extent(f.strides, p.b, f.h, f.s, f.d) * bytes_of(p.dtype)));
        std::memset(
            t.back().data(), 0xff,
            static_cast<std::size_t>(extent(f.strides, p.b, f.h, f.s, f.d) * bytes_of(p.dtype)));
      }
      const Random random(7);
      for (const auto& [tensor, field] : {std::pair{0, 0}, {1, 1}, {2, 2}, {4, 3}}) {
        for_each_element(p, fields[field], [&](std::int64_t i) {
          store_element(t[static_cast<std::size_t>(tensor)].data(), p.dtype, i,
                        random.normal(static_cast<std::uint64_t>(i + 1000000 * tensor)));
        });
      }
      const auto rows = static_cast<std::size_t>(p.b * p.hq * p.sq);
      Guarded lse(rows * sizeof(float));
      const Plan plan = dfa::plan(p, variant.options);
      Guarded workspace(plan.workspace_bytes);
      auto* lse_data = reinterpret_cast<float*>(lse.data());
      forward(plan,
              {t[0].data(), t[1].data(), t[2].data(), t[3].data(), lse_data, workspace.data()});
      backward(plan, {t[0].data(), t[1].data(), t[2].data(), t[3].data(), lse_data, t[4].data(),
                      t[5].data(), t[6].data(), t[7].data(), workspace.data()});
      for (std::size_t i = 0; i < t.size(); ++i) {
        EXPECT_TRUE(t[i].guards_intact()) << variant.name << " tensor " << i << " " << line;
      }
      EXPECT_TRUE(lse.guards_intact()) << variant.name;
      EXPECT_TRUE(workspace.guards_intact()) << variant.name;
      for (const auto& [tensor, field] : {std::pair{3, 3}, {5, 0}, {6, 1}, {7, 2}}) {
        std::int64_t elements = 0, numbers = 0, in_gaps = 0;
        const Field& f = fields[field];
        for_each_element(p, f, [&](std::int64_t i) {
          ++elements;
          numbers +=
              std::isfinite(load_element(t[static_cast<std::size_t>(tensor)].data(), p.dtype, i));
        });
        for (std::int64_t i = 0; i < extent(f.strides, p.b, f.h, f.s, f.d); ++i) {
          in_gaps +=
              std::isfinite(load_element(t[static_cast<std::size_t>(tensor)].data(), p.dtype, i));
        }
        EXPECT_EQ(numbers, elements) << variant.name << " tensor " << tensor << " " << line;
        EXPECT_EQ(in_gaps, elements) << variant.name << ": something was written into the gaps";
      }
    }
  }
}

}  // namespace
}  // namespace dfa
