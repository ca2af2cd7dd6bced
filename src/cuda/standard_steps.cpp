#include "cuda/standard_steps.h"

#include <algorithm>
#include <optional>
#include <string>

#include "spec/passes.h"

namespace dfa::cuda {
namespace {

constexpr std::int64_t kMostRows = (1LL << 31) - 1;  // of a launch's grid
constexpr std::int64_t kMostKeys = 1LL << 29;        // the kernels count them in 32 bits
constexpr std::int64_t kRowPadding = 8;              // scores: 16 bytes in every element type

std::int64_t divided_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

// A tensor as matrices, one a key head: the rows of its query heads, one head after the other.
// None where no single distance leads from a row, or a matrix, to the next.
std::optional<gpu::Matrices> matrices_of(const Problem& p, const Strides& strides,
                                         std::int64_t heads, std::int64_t rows, std::int64_t dim) {
  const std::int64_t group = heads / p.hk;
  gpu::Matrices m{.type = p.dtype, .rows = group * rows, .cols = dim, .row_stride = strides.row};
  if (rows == 1) m.row_stride = group == 1 ? dim : strides.head;
  if (group > 1 && rows > 1 && strides.head != rows * strides.row) return std::nullopt;
  m.stride = p.hk == 1 ? strides.batch : group * strides.head;
  if (p.b > 1 && strides.batch != p.hk * m.stride && p.hk > 1) return std::nullopt;
  const std::int64_t step = static_cast<std::int64_t>(gpu::kProductAlignment) / bytes_of(p.dtype);
  const bool fits = m.row_stride >= dim && m.row_stride % step == 0 && m.stride % step == 0;
  return fits ? std::optional(m) : std::nullopt;
}

KernelStrides kernel_strides(const Strides& s) { return {s.batch, s.head, s.row}; }

std::string type_text(DType type) { return std::string("dfa::DType::") + name_of(type); }

class Builder {
 public:
  explicit Builder(const Problem& problem)
      : p(problem),
        group_rows_(p.hq / p.hk * p.sq),
        row_(divided_up(p.sk, kRowPadding) * kRowPadding) {}

  // A matrix of scores for every query head.
  Place matrix() {
    const Place place = take(score_bytes());
    pass_.matrix_bytes = at_;
    return place;
  }

  // The same where the caller keeps it.
  Place kept_matrix() {
    pass_.probabilities_bytes = score_bytes();
    return {Tensor::probabilities};
  }

  struct Operand {
    Place place;
    gpu::Matrices matrices;
  };

  // In tf32, products take what was rounded; the tensor cores would only cut.
  Operand input(Tensor tensor, const Strides& strides, std::int64_t heads, std::int64_t rows,
                std::int64_t dim) {
    const auto as_it_lies = matrices_of(p, strides, heads, rows, dim);
    if (as_it_lies && p.dtype != DType::tf32) return {{tensor}, *as_it_lies};
    const Strides dense = dense_strides(heads, rows, dim);
    const Place copy = take_copy(heads, rows, dim);
    pass_.steps.push_back(copy_step(p.dtype, {tensor}, strides, copy, dense, heads, rows, dim));
    return {copy, *matrices_of(p, dense, heads, rows, dim)};
  }

  // Copied to its place by finish(), where products cannot write it as it lies.
  Operand output(Tensor tensor, const Strides& strides, std::int64_t heads, std::int64_t rows,
                 std::int64_t dim) {
    if (const auto as_it_lies = matrices_of(p, strides, heads, rows, dim)) {
      return {{tensor}, *as_it_lies};
    }
    const Strides dense = dense_strides(heads, rows, dim);
    const Place copy = take_copy(heads, rows, dim);
    const DType stored = p.dtype == DType::tf32 ? DType::fp32 : p.dtype;
    last_copies_.push_back(copy_step(stored, copy, dense, {tensor}, strides, heads, rows, dim));
    return {copy, *matrices_of(p, dense, heads, rows, dim)};
  }

  // S or dP as fp32 sums, and what has taken their place as a factor.
  Operand sums(Place place) const {
    return {place, {DType::fp32, group_rows_, p.sk, row_, group_rows_ * row_}};
  }
  Operand factor(Place place) const {
    const std::int64_t wider = 4 / bytes_of(p.dtype);
    return {place, {p.dtype, group_rows_, p.sk, wider * row_, wider * group_rows_ * row_}};
  }

  void product(Operand left, Operand right, Operand out, double alpha) {
    out.matrices.type = out.matrices.type == DType::tf32 ? DType::fp32 : out.matrices.type;
    pass_.steps.push_back(ProductStep{{left.matrices, right.matrices, out.matrices, p.b * p.hk},
                                      static_cast<float>(alpha),
                                      left.place,
                                      right.place,
                                      out.place});
  }

  void scores(const char* kernel, Place scores, Place gradients, Place lse) {
    const int lanes = *std::find_if(std::begin(kRowLanes), std::end(kRowLanes), [&](int some) {
      return some == kMostRowLanes || some * kScoresHeld >= p.sk;
    });
    const int threads = lanes > 32 ? lanes : kScoreThreads;
    const std::int64_t rows = p.b * p.hq * p.sq;
    const KernelArgs all = kernel_args(p);
    pass_.steps.push_back(
        ScoreStep{{.name = kernel,
                   .source = std::string("kernels/standard/") + kernel + ".cuh",
                   .entry = std::string("dfa::standard_") + kernel + "<" + type_text(p.dtype) +
                            ", " + std::to_string(lanes) + ">",
                   .grid = static_cast<unsigned>(divided_up(rows, threads / lanes)),
                   .threads = static_cast<unsigned>(threads)},
                  {.scores = nullptr,
                   .gradients = nullptr,
                   .lse = nullptr,
                   .rows = rows,
                   .row_stride = static_cast<int>(row_),
                   .sq = all.sq,
                   .sk = all.sk,
                   .left = all.left,
                   .right = all.right},
                  scores,
                  gradients,
                  lse});
  }

  StandardPass finish() {
    for (CopyStep& step : last_copies_) pass_.steps.push_back(std::move(step));
    pass_.copy_bytes = at_ - pass_.matrix_bytes;
    pass_.product_offset = take(kProductBytes).offset;
    pass_.workspace_bytes = at_;
    return std::move(pass_);
  }

  const Problem& p;

 private:
  std::size_t score_bytes() const {
    return static_cast<std::size_t>(p.b * p.hq * p.sq * row_) * sizeof(float);
  }

  Place take(std::size_t bytes) {
    constexpr std::size_t kAlignment = 256;
    const std::size_t offset = at_;
    at_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return {Tensor::workspace, offset};
  }

  Place take_copy(std::int64_t heads, std::int64_t rows, std::int64_t dim) {
    return take(static_cast<std::size_t>(p.b * heads * rows * dim * bytes_of(p.dtype)));
  }

  static Strides dense_strides(std::int64_t heads, std::int64_t rows, std::int64_t dim) {
    return {heads * rows * dim, rows * dim, dim};
  }

  CopyStep copy_step(DType type, Place from, const Strides& from_strides, Place to,
                     const Strides& to_strides, std::int64_t heads, std::int64_t rows,
                     std::int64_t dim) const {
    const std::int64_t all_rows = p.b * heads * rows;
    return {{.name = "copy",
             .source = "kernels/standard/copy.cuh",
             .entry = "dfa::standard_copy<" + type_text(type) + ">",
             .grid = static_cast<unsigned>(divided_up(all_rows, kCopyThreads / 32)),
             .threads = kCopyThreads},
            {.from = nullptr,
             .to = nullptr,
             .from_strides = kernel_strides(from_strides),
             .to_strides = kernel_strides(to_strides),
             .rows = all_rows,
             .heads = static_cast<int>(heads),
             .s = static_cast<int>(rows),
             .d = static_cast<int>(dim)},
            from,
            to};
  }

  std::int64_t group_rows_;  // query rows that a key head serves
  std::int64_t row_;         // fp32 elements from one row of scores to the next
  std::size_t at_ = 0;
  StandardPass pass_;
  std::vector<CopyStep> last_copies_;
};

Builder::Operand transposed(Builder::Operand operand) {
  operand.matrices.transposed = true;
  return operand;
}

}  // namespace

Verdict check_standard(const Problem& p, int capability) {
  if (p.dtype == DType::e4m3) return Verdict::no("standard attention takes no e4m3 on a GPU");
  if (capability < 80 && (p.dtype == DType::bf16 || p.dtype == DType::tf32)) {
    return Verdict::no(std::string(name_of(p.dtype)) + " needs a GPU from sm_80 on");
  }
  if (p.sq > kMostKeys || p.sk > kMostKeys) {
    return Verdict::no("standard attention on a GPU takes at most 2^29 queries and keys");
  }
  if (p.b * p.hq > kMostRows / p.sq || p.b * p.hk > kMostRows / p.sk) {
    return Verdict::no("standard attention on a GPU takes less than 2^31 rows of all heads");
  }
  return Verdict::yes();
}

StandardPass standard_forward_pass(const Problem& p, bool stored) {
  Builder build(p);
  const Place s = stored ? build.kept_matrix() : build.matrix();
  const auto q = build.input(Tensor::q, p.q(), p.hq, p.sq, p.d);
  const auto k = build.input(Tensor::k, p.k(), p.hk, p.sk, p.d);
  const auto v = build.input(Tensor::v, p.v(), p.hk, p.sk, p.dv);
  const auto o = build.output(Tensor::o, p.o(), p.hq, p.sq, p.dv);
  build.product(q, transposed(k), build.sums(s), p.softmax_scale());
  build.scores("softmax", s, {}, {Tensor::lse});
  build.product(build.factor(s), v, o, 1);
  return build.finish();
}

StandardPass standard_backward_pass(const Problem& p, bool stored) {
  Builder build(p);
  const Place s = stored ? build.kept_matrix() : build.matrix();
  const Place dp = build.matrix();
  const auto q = build.input(Tensor::q, p.q(), p.hq, p.sq, p.d);
  const auto k = build.input(Tensor::k, p.k(), p.hk, p.sk, p.d);
  const auto v = build.input(Tensor::v, p.v(), p.hk, p.sk, p.dv);
  const auto d_o = build.input(Tensor::d_o, p.o(), p.hq, p.sq, p.dv);
  const auto dq = build.output(Tensor::dq, p.q(), p.hq, p.sq, p.d);
  const auto dk = build.output(Tensor::dk, p.k(), p.hk, p.sk, p.d);
  const auto dv = build.output(Tensor::dv, p.v(), p.hk, p.sk, p.dv);
  if (!stored) {
    build.product(q, transposed(k), build.sums(s), p.softmax_scale());
    build.scores("softmax", s, {}, {});
  }
  build.product(d_o, transposed(v), build.sums(dp), 1);
  build.scores("score_gradient", s, dp, {});
  // Sums over a group's query heads are sums over the rows of one matrix.
  build.product(transposed(build.factor(s)), d_o, dv, 1);
  build.product(build.factor(dp), k, dq, p.softmax_scale());
  build.product(transposed(build.factor(dp)), q, dk, p.softmax_scale());
  return build.finish();
}

std::vector<KernelLaunch> standard_launches(const Problem& problem) {
  std::vector<KernelLaunch> launches;
  const auto add_pass = [&](const StandardPass& pass) {
    for (const StandardStep& step : pass.steps) {
      if (const auto* score = std::get_if<ScoreStep>(&step)) launches.push_back(score->launch);
      if (const auto* copy = std::get_if<CopyStep>(&step)) launches.push_back(copy->launch);
    }
  };
  if (has_forward(problem)) add_pass(standard_forward_pass(problem));
  if (has_backward(problem)) add_pass(standard_backward_pass(problem));
  return launches;
}

}  // namespace dfa::cuda
