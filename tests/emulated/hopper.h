#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

// Before anything of the kernels:
#include "emulated/warps.h"
#include "plan/validate.h"
#include "plan/validate_gpu.h"
#include "spec/limits.h"
// and then:
#include "cuda/hopper_args.h"
#include "kernels/launch.h"
#include "reference/check.h"
#include "tensors.h"

// What Hopper's kernels are tested with on a processor.
namespace dfa::emulated {

template <typename Config>
void expect_legal(const Config& config, const Problem& p) {
  const Verdict verdict = validate_config(config, p, gpu_limits(90));
  EXPECT_TRUE(verdict) << verdict.reason;
}

inline void expect_met(const CheckReport& report, const std::string& line) {
  EXPECT_TRUE(report.ok) << line << "\n" << report.summary();
}

// A workspace of NaN, in which a kernel finds zeros where it asks for them.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : words_((bytes + 63) / 64) {
    std::memset(words_.data(), 0xff, words_.size() * 64);
  }
  void zero(const ZeroedBytes& z) { std::memset(data() + z.offset, 0, z.bytes); }
  char* data() { return reinterpret_cast<char*>(words_.data()); }

 private:
  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> words_;
};

constexpr ForwardConfig hopper_forward(DType element, int dim, int block_q, int block_k, int stages,
                                       int q_stages, bool pingpong = false, int cluster = 1) {
  return {.target = Target::cuda_sm90,
          .element = element,
          .head_dim = dim,
          .value_dim = dim,
          .block_q = block_q,
          .block_k = block_k,
          .warps = block_q / 16,
          .stages = stages,
          .ctas = 1,
          .q_stages = q_stages,
          .pingpong = pingpong,
          .cluster = cluster};
}

constexpr ForwardConfig packed(ForwardConfig config) {
  config.varlen = true;
  return config;
}
constexpr ForwardConfig packing(ForwardConfig config, int heads) {
  config.pack_gqa = heads;
  return config;
}

// Of chunked and prefix masks.
template <typename Config>
constexpr Config ranges(Config config) {
  config.ranges = true;
  return config;
}

inline constexpr int kSoftcap = 1, kAlibi = 2, kSink = 4;

template <typename Config>
constexpr Config with_logits(Config config, int logits) {
  config.softcap = (logits & kSoftcap) != 0;
  config.alibi = (logits & kAlibi) != 0;
  if constexpr (requires { config.sink; }) config.sink = (logits & kSink) != 0;
  return config;
}

// A slope or a sink that is NaN, which nobody reads on a GPU ahead of a kernel, makes the rows of
// its head NaN, and lse, and nothing else. line: dense, in bf16, of two heads or more with alibi
// and a sink.
template <typename Run>
void expect_nan_in_its_head_alone(const std::string& line, const Run& run) {
  for (std::vector<float> Tensors::*given : {&Tensors::slopes, &Tensors::sinks}) {
    Tensors t(line, 5);
    std::fill(t.o.begin(), t.o.end(), std::byte{0x41});
    std::fill(t.lse.begin(), t.lse.end(), 7.0f);
    (t.*given)[1] = std::nanf("");
    run(t);
    const std::int64_t rows = t.p.sq, columns = t.p.dv;
    for (std::int64_t row = 0; row < t.p.hq * rows; ++row) {
      const bool bad = row / rows == 1;
      ASSERT_EQ(std::isnan(t.lse[static_cast<std::size_t>(row)]), bad) << line << ", row " << row;
      for (std::int64_t i = row * columns; i < (row + 1) * columns; ++i) {
        std::uint16_t code = 0;
        std::memcpy(&code, &t.o[static_cast<std::size_t>(2 * i)], 2);
        ASSERT_EQ((code & 0x7fff) > 0x7f80, bad) << line << ", row " << row;
      }
    }
  }
}

// The end of a problem line.
inline std::string said_of(int logits) {
  std::string text;
  if ((logits & kSoftcap) != 0) text += " softcap(4)";
  if ((logits & kAlibi) != 0) text += " alibi";
  if ((logits & kSink) != 0) text += " sink";
  return text;
}

}  // namespace dfa::emulated
