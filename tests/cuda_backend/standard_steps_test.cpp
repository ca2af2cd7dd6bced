// The steps of standard attention, done one by one on the host, are attention.
#include "cuda/standard_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/instrumented.h"
#include "problem_lines.h"
#include "reference/check.h"
#include "tensors.h"

namespace dfa::cuda {
namespace {

// Does steps on host memory. The workspace starts as NaN and ends in guard bytes.
class HostSteps {
 public:
  HostSteps(Tensors& t, const StandardPass& pass, void* probabilities = nullptr)
      : p_(t.p), workspace_(pass.workspace_bytes + kGuard, std::byte{0xff}) {
    tensors_ = {{Tensor::q, t.q.data()},
                {Tensor::k, t.k.data()},
                {Tensor::v, t.v.data()},
                {Tensor::o, t.o.data()},
                {Tensor::d_o, t.d_o.data()},
                {Tensor::dq, t.dq.data()},
                {Tensor::dk, t.dk.data()},
                {Tensor::dv, t.dv.data()},
                {Tensor::lse, t.lse.data()},
                {Tensor::none, nullptr},
                {Tensor::probabilities, probabilities},
                {Tensor::workspace, workspace_.data()}};
    for (const StandardStep& step : pass.steps) {
      std::visit([this](const auto& one) { run(one); }, step);
    }
  }

  bool guard_is_whole() const {
    return std::all_of(workspace_.end() - kGuard, workspace_.end(),
                       [](std::byte byte) { return byte == std::byte{0xff}; });
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 4096;

  template <class T = void>
  T* at(Place place) const {
    void* const tensor = tensors_.at(place.tensor);
    return tensor == nullptr ? nullptr
                             : reinterpret_cast<T*>(static_cast<char*>(tensor) + place.offset);
  }

  // A factor's matrix n, as it is multiplied.
  static std::vector<float> read(const void* data, const gpu::Matrices& m, std::int64_t n) {
    std::vector<float> values(static_cast<std::size_t>(m.rows * m.cols));
    for (std::int64_t row = 0; row < m.rows; ++row) {
      for (std::int64_t col = 0; col < m.cols; ++col) {
        const std::int64_t to = m.transposed ? col * m.rows + row : row * m.cols + col;
        values[static_cast<std::size_t>(to)] =
            load_element(data, m.type, n * m.stride + row * m.row_stride + col);
      }
    }
    return values;
  }

  // to[j] += a * from[j]
  DFA_NOT_INSTRUMENTED static void add_scaled(double* to, double a, const float* from,
                                              std::size_t count) {
    for (std::size_t j = 0; j < count; ++j) to[j] += a * from[j];
  }

  void run(const ProductStep& step) {
    const gpu::Matrices& out = step.shape.out;
    for (std::int64_t n = 0; n < step.shape.batch; ++n) {
      const auto left = read(at(step.left), step.shape.left, n);
      const auto right = read(at(step.right), step.shape.right, n);
      const auto cols = static_cast<std::size_t>(out.cols);
      const std::size_t inner = right.size() / cols;
      for (std::int64_t i = 0; i < out.rows; ++i) {
        const float* const row = left.data() + static_cast<std::size_t>(i) * inner;
        std::vector<double> sums(cols, 0.);
        for (std::size_t x = 0; x < inner; ++x) {
          add_scaled(sums.data(), row[x], right.data() + x * cols, cols);
        }
        for (std::size_t j = 0; j < cols; ++j) {
          store_element(at(step.out), out.type,
                        n * out.stride + i * out.row_stride + static_cast<std::int64_t>(j),
                        step.alpha * static_cast<float>(sums[j]));
        }
      }
    }
  }

  void run(const ScoreStep& step) {
    const ScoreArgs& a = step.args;
    for (std::int64_t row = 0; row < a.rows; ++row) {
      const auto begin = p_.mask.key_begin(row % a.sq, p_.sq, p_.sk);
      const auto end = std::max(begin, p_.mask.key_end(row % a.sq, p_.sq, p_.sk));
      float* const scores = at<float>(step.scores) + row * a.row_stride;
      if (step.launch.name == "softmax") {
        softmax(scores, begin, end, a.sk);
        if (at(step.lse) != nullptr) at<float>(step.lse)[row] = lse_;
      } else {
        gradient(scores, at<float>(step.gradients) + row * a.row_stride, begin, end, a.sk);
      }
    }
  }

  // The same row in the element type, from its beginning on.
  void replace(float* row, const std::vector<float>& values) const {
    for (std::size_t j = 0; j < values.size(); ++j) {
      store_element(row, p_.dtype, static_cast<std::int64_t>(j), round_to(p_.dtype, values[j]));
    }
  }

  void softmax(float* row, std::int64_t begin, std::int64_t end, std::int64_t sk) {
    std::vector<float> values(static_cast<std::size_t>(sk), 0.f);
    lse_ = -std::numeric_limits<float>::infinity();
    if (begin < end) {
      const float maximum = *std::max_element(row + begin, row + end);
      float sum = 0;
      for (std::int64_t j = begin; j < end; ++j) sum += std::exp(row[j] - maximum);
      for (std::int64_t j = begin; j < end; ++j) {
        values[static_cast<std::size_t>(j)] = std::exp(row[j] - maximum) / sum;
      }
      lse_ = maximum + std::log(sum);
    }
    replace(row, values);
  }

  void gradient(const float* p_row, float* row, std::int64_t begin, std::int64_t end,
                std::int64_t sk) const {
    float delta = 0;
    for (std::int64_t j = begin; j < end; ++j) delta += load_element(p_row, p_.dtype, j) * row[j];
    std::vector<float> values(static_cast<std::size_t>(sk), 0.f);
    for (std::int64_t j = begin; j < end; ++j) {
      values[static_cast<std::size_t>(j)] = load_element(p_row, p_.dtype, j) * (row[j] - delta);
    }
    replace(row, values);
  }

  void run(const CopyStep& step) const {
    const CopyArgs& a = step.args;
    const bool rounds = step.launch.entry.find("tf32") != std::string::npos;
    for (std::int64_t row = 0; row < a.rows; ++row) {
      const std::int64_t head = row / a.s;
      const auto start = [&](const KernelStrides& s) {
        return head / a.heads * s.batch + head % a.heads * s.head + row % a.s * s.row;
      };
      for (std::int64_t x = 0; x < a.d; ++x) {
        const float value = load_element(at(step.from), p_.dtype, start(a.from_strides) + x);
        store_element(at(step.to), p_.dtype, start(a.to_strides) + x,
                      rounds ? round_to(DType::tf32, value) : value);
      }
    }
  }

  Problem p_;
  std::vector<std::byte> workspace_;
  std::map<Tensor, void*> tensors_;
  float lse_ = 0;
};

// Empty, or what is wrong.
std::string fault(const std::string& line, bool stored = false) {
  Tensors t(line);
  if (!check_standard(t.p, 90)) return check_standard(t.p, 90).reason;
  std::string text;
  const StandardPass first = standard_forward_pass(t.p, stored);
  std::vector<std::byte> kept(first.probabilities_bytes, std::byte{0xff});
  const HostSteps forward(t, first, kept.data());
  if (!forward.guard_is_whole()) text += "beyond the forward's workspace; ";
  if (const auto report = check_forward(t.p, t.forward_args()); !report.ok)
    text += report.summary();
  if (t.p.pass == Pass::forward) return text;
  const HostSteps backward(t, standard_backward_pass(t.p, stored), kept.data());
  if (!backward.guard_is_whole()) text += "beyond the backward's workspace; ";
  if (const auto report = check_backward(t.p, t.backward_args()); !report.ok) {
    text += report.summary();
  }
  return text;
}

TEST(StandardSteps, AreAttentionForEveryProblemOfTheFiles) {
  for (const char* file : {"test_quick.txt", "regressions.txt", "wide_heads.txt"}) {
    for (const std::string& line : problem_lines(file)) {
      EXPECT_EQ(fault(line), "") << line;
      const std::size_t at = line.find("fp32");
      if (at == std::string::npos) continue;
      const std::string tf32 = std::string(line).replace(at, 4, "tf32");
      EXPECT_EQ(fault(tf32), "") << tf32;
    }
  }
}

// Groups whose heads do not follow one another, single rows, heads and batches, repeated inputs.
TEST(StandardSteps, AreAttentionInEveryLayout) {
  for (const char* line : {
           "fwdbwd bf16 causal b2 hq6 hk2 sq9 sk12 d16 layout(bshd)",
           "fwdbwd fp16 b2 hq4 hk2 sq1 sk11 d8 layout(bshd)",
           "fwdbwd fp32 b3 hq4 hk1 sq1 sk7 d8 layout(bshd)",
           "fwdbwd bf16 b3 hq2 hk2 sq5 sk6 d16 layout(bshd)",
           "fwdbwd bf16 b1 hq4 hk4 sq5 sk6 d16 layout(bshd)",
           "fwdbwd fp32 b3 hq1 hk1 sq5 sk6 d16 strides_q(200,100,20) strides_o(160,150,16)",
           "fwdbwd bf16 b2 hq4 hk2 sq5 sk6 d16 strides_q(400,100,20)",
           "fwdbwd bf16 b2 hq4 hk2 sq5 sk6 d16 strides_q(512,128,24)",
           "fwd fp32 b2 hq2 hk2 sq5 sk6 d16 strides_k(0,96,16) strides_v(96,0,16)",
       }) {
    EXPECT_EQ(fault(line), "") << line;
  }
}

// P stays from the forward to the backward: rounded to the element type, as tensor cores take it.
TEST(StandardSteps, AreAttentionWherePIsStored) {
  for (const char* file : {"test_quick.txt", "regressions.txt", "wide_heads.txt"}) {
    for (const std::string& line : problem_lines(file)) {
      if (line.rfind("fwdbwd", 0) != 0) continue;
      EXPECT_EQ(fault(line, true), "") << line;
    }
  }
  EXPECT_EQ(fault("fwdbwd tf32 causal b2 hq4 hk2 sq9 sk12 d16", true), "");
  EXPECT_EQ(fault("fwdbwd bf16 causal b2 hq6 hk2 sq9 sk12 d16 layout(bshd)", true), "");
}

std::size_t steps_of_kind(const StandardPass& pass, const char* name) {
  return static_cast<std::size_t>(
      std::count_if(pass.steps.begin(), pass.steps.end(), [&](const StandardStep& step) {
        const auto* copy = std::get_if<CopyStep>(&step);
        const auto* score = std::get_if<ScoreStep>(&step);
        if (copy != nullptr) return copy->launch.name == name;
        return score != nullptr ? score->launch.name == name : std::string("product") == name;
      }));
}

TEST(StandardSteps, DenseTensorsAreUsedWhereTheyLie) {
  const Problem p = parse_problem("fwdbwd bf16 causal b4 hq8 hk2 sq100 sk70 d64");
  const StandardPass forward = standard_forward_pass(p), backward = standard_backward_pass(p);
  EXPECT_EQ(steps_of_kind(forward, "product"), 2u);
  EXPECT_EQ(steps_of_kind(forward, "softmax"), 1u);
  EXPECT_EQ(steps_of_kind(forward, "copy"), 0u);
  EXPECT_EQ(steps_of_kind(backward, "product"), 5u);
  EXPECT_EQ(steps_of_kind(backward, "score_gradient"), 1u);
  EXPECT_EQ(steps_of_kind(backward, "copy"), 0u);
}

TEST(StandardSteps, StoredPTakesOneProductAndTheSoftmaxFromTheBackward) {
  const Problem p = parse_problem("fwdbwd bf16 b2 hq4 hk2 sq100 sk70 d64");
  const std::size_t matrix = 2 * 4 * 100 * 72 * 4;
  const StandardPass forward = standard_forward_pass(p, true);
  const StandardPass backward = standard_backward_pass(p, true);
  EXPECT_EQ(steps_of_kind(forward, "product"), 2u);
  EXPECT_EQ(steps_of_kind(forward, "softmax"), 1u);
  EXPECT_EQ(steps_of_kind(backward, "product"), 4u);
  EXPECT_EQ(steps_of_kind(backward, "softmax"), 0u);
  EXPECT_EQ(steps_of_kind(backward, "score_gradient"), 1u);
  EXPECT_EQ(forward.probabilities_bytes, matrix);
  EXPECT_EQ(backward.probabilities_bytes, matrix);
  EXPECT_EQ(forward.workspace_bytes, kProductBytes);
  EXPECT_EQ(backward.workspace_bytes, matrix + kProductBytes);
}

TEST(StandardSteps, OnlyWhatProductsCannotTakeIsCopied) {
  // Without groups, one head's rows need not follow another's; with several batches they must.
  const auto copies = [](const char* line) {
    return steps_of_kind(standard_forward_pass(parse_problem(line)), "copy");
  };
  EXPECT_EQ(copies("fwd bf16 b1 hq4 hk4 sq8 sk8 d16 layout(bshd)"), 0u);
  EXPECT_EQ(copies("fwd bf16 b1 hq4 hk2 sq8 sk8 d16 layout(bshd)"), 2u);  // q and o
  EXPECT_EQ(copies("fwd bf16 b2 hq4 hk4 sq8 sk8 d16 layout(bshd)"), 4u);
  EXPECT_EQ(copies("fwd fp32 b1 h1 s8 d16 strides_v(800,400,17)"), 1u);  // not 16 bytes
  EXPECT_EQ(copies("fwd tf32 b1 h1 s8 d16"), 3u);                        // rounded
}

TEST(StandardSteps, MemoryIsTheMatricesTheCopiesAndTheProductsScratch) {
  const Problem p = parse_problem("fwdbwd bf16 b2 hq4 hk2 sq100 sk70 d64");
  const std::size_t matrix = 2 * 4 * 100 * 72 * 4;  // rows padded to eight elements
  EXPECT_EQ(standard_forward_pass(p).matrix_bytes, matrix);
  EXPECT_EQ(standard_forward_pass(p).workspace_bytes, matrix + kProductBytes);
  EXPECT_EQ(standard_backward_pass(p).matrix_bytes, 2 * matrix);
  EXPECT_EQ(standard_backward_pass(p).workspace_bytes, 2 * matrix + kProductBytes);
  const Problem copied = parse_problem("fwd fp32 b2 hq4 hk4 sq100 sk72 d64 layout(bshd)");
  const std::size_t copies = 4 * 64 * 2 * 4 * (2 * 100 + 2 * 72);
  EXPECT_EQ(standard_forward_pass(copied).copy_bytes, copies);
  EXPECT_EQ(standard_forward_pass(copied).workspace_bytes, matrix + copies + kProductBytes);
  // S of 2^17 x 2^17 for 2^7 heads: 2^43 bytes, counted without overflow.
  const Problem large = parse_problem("fwd bf16 b8 h16 s131072 d64");
  EXPECT_EQ(standard_forward_pass(large).matrix_bytes, std::size_t{1} << 43);
}

TEST(StandardSteps, LongerRowsTakeMoreThreads) {
  const auto launch = [](const char* line) {
    return std::get<ScoreStep>(standard_forward_pass(parse_problem(line)).steps.at(1)).launch;
  };
  EXPECT_EQ(launch("fwd bf16 b1 h2 sq5 sk512 d64").entry,
            "dfa::standard_softmax<dfa::DType::bf16, 32>");
  EXPECT_EQ(launch("fwd bf16 b1 h2 sq5 sk512 d64").grid, 3u);  // ten rows, four a block
  EXPECT_EQ(launch("fwd fp16 b1 h2 sq5 sk513 d64").entry,
            "dfa::standard_softmax<dfa::DType::fp16, 64>");
  EXPECT_EQ(launch("fwd fp16 b1 h2 sq5 sk513 d64").grid, 10u);  // one a block
  EXPECT_EQ(launch("fwd fp16 b1 h2 sq5 sk513 d64").threads, 64u);
  EXPECT_EQ(launch("fwd fp16 b1 h2 sq5 sk2048 d64").grid, 10u);
  EXPECT_EQ(launch("fwd fp32 b1 h2 sq5 sk99999 d64").threads, 512u);
}

TEST(StandardSteps, WhatCannotRunIsRefusedWithTheReason) {
  const auto reason = [](const char* line, int capability) {
    return check_standard(parse_problem(line), capability).reason;
  };
  EXPECT_EQ(reason("fwd fp16 b1 h1 s8 d16", 75), "");
  EXPECT_EQ(reason("fwd bf16 b1 h1 s8 d16", 80), "");
  EXPECT_NE(reason("fwd bf16 b1 h1 s8 d16", 75).find("bf16 needs"), std::string::npos);
  EXPECT_NE(reason("fwd tf32 b1 h1 s8 d16", 75).find("tf32 needs"), std::string::npos);
  EXPECT_NE(reason("fwd e4m3 b1 h1 s8 d16", 90).find("e4m3"), std::string::npos);
  EXPECT_NE(reason("fwd fp16 b1 h1 sq1 sk536870920 d16", 90).find("2^29"), std::string::npos);
  EXPECT_NE(reason("fwd fp16 b64 h64 sq524288 sk1 d16", 90).find("2^31"), std::string::npos);
}

}  // namespace
}  // namespace dfa::cuda
