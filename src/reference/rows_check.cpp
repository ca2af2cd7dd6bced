#include "reference/rows_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/element.h"
#include "base/random.h"
#include "reference/head.h"

namespace dfa {
namespace {

class HostRowsCheck final : public RowsCheck {
 public:
  HostRowsCheck(const Problem& p, int rows) : p_(p), rows_(rows) {}

  double error(const ForwardArgs& args, std::uint64_t seed, Queue) override {
    const Random random(seed);
    const auto heads = static_cast<std::uint64_t>(p_.b * p_.hq);
    const auto head = static_cast<std::int64_t>(random.below(0, heads));
    const std::int64_t b = head / p_.hq, h = head % p_.hq;
    const Head<double> truth(p_, args.q, args.k, args.v, nullptr, b, h, 0, args.logits, args.blocks,
                             args.descales);
    double worst = 0;
    for (int n = 1; n <= rows_; ++n) {
      const auto count = static_cast<std::uint64_t>(p_.sq);
      const auto row =
          static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(n), count));
      worst = std::max(worst, error_of(truth.forward(row).o, args.o, b, h, row));
    }
    return worst;
  }

 private:
  double error_of(const std::vector<double>& truth, const void* o, std::int64_t b, std::int64_t h,
                  std::int64_t row) const {
    const Strides strides = p_.o();
    const std::int64_t start = b * strides.batch + h * strides.head + row * strides.row;
    double worst = 0;
    for (std::size_t x = 0; x < truth.size(); ++x) {
      if (!std::isfinite(truth[x])) continue;  // of inputs that are not
      const float got = load_element(o, p_.o_dtype(), start + static_cast<std::int64_t>(x));
      const double off = std::fabs(static_cast<double>(got) - truth[x]);
      worst = std::max(worst, std::isfinite(off) ? off : std::numeric_limits<double>::infinity());
    }
    return worst;
  }

  Problem p_;
  int rows_;
};

}  // namespace

std::unique_ptr<RowsCheck> host_rows_check(const Problem& p, int rows) {
  if (rows < 1 || rows > 1 << 16) {
    throw InvalidArgument("rows " + std::to_string(rows) + "; accepted: 1 to 65536");
  }
  if (p.packed()) throw Unsupported("rows of packed sequences are not recomputed");
  return std::make_unique<HostRowsCheck>(p, rows);
}

}  // namespace dfa
