#pragma once

#include <algorithm>
#include <cmath>

// Before anything of the kernels:
#include "emulated/warps.h"
// and then:
#include "base/safetensors.h"
#include "emulated/hopper.h"
#include "kernels/forward/sm90_forward.cuh"

// Hopper's forward with `skip` beside itself without: what tests and skip_counts.cpp share.
namespace dfa::emulated {

constexpr ForwardConfig skipping(DType element) {
  ForwardConfig config = hopper_forward(element, 64, 128, 64, 2, 2);
  config.skip = true;
  return config;
}

constexpr ForwardConfig keeping(DType element) {
  ForwardConfig config = skipping(element);
  config.skip = false;
  return config;
}

// Products of weights with v that warps made.
template <ForwardConfig kConfig>
long long run_counting(Tensors& t) {
  expect_legal(kConfig, t.p);
  const KernelLaunch launched = forward_launches(t.p, kConfig)[0];
  const cuda::HopperForwardArgs all(t.p, kConfig);
  const Sm90ForwardArgs args = all.with(t.forward_args(), static_cast<int>(launched.grid));
  counted = {};
  launch(launched.grid, launched.threads, [&] { sm90_forward<kConfig>(args); });
  return counted.registers;
}

struct Skipped {
  double part;           // of the products with v
  long long differ = 0;  // elements of o, from those of the kernel without `skip`
  double furthest = 0;   // of them, beside the largest element of v
  bool harmless;         // the same bits as with every vote against skipping
  CheckReport report;
};

template <DType kElement>
Skipped skip(const Tensors& inputs) {
  Tensors off = inputs, kept = inputs, on = inputs;
  const auto all = static_cast<double>(run_counting<keeping(kElement)>(off));
  deaf.votes = true;
  run_counting<skipping(kElement)>(kept);
  deaf = {};
  Skipped s{.part = 1 - static_cast<double>(run_counting<skipping(kElement)>(on)) / all};
  s.harmless = on.o == kept.o &&
               std::memcmp(on.lse.data(), kept.lse.data(), on.lse.size() * sizeof(float)) == 0;
  double largest = 0;
  for (std::int64_t i = 0; i < on.count(on.v); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(on.at(on.v, i))));
  }
  for (std::int64_t i = 0; i < on.count(on.o); ++i) {
    const double change = std::fabs(static_cast<double>(on.at(on.o, i)) - off.at(off.o, i));
    s.differ += change != 0;
    s.furthest = std::max(s.furthest, change / largest);
  }
  s.report = check_forward(on.p, on.forward_args());
  return s;
}

// Inputs, of 64 columns where they are made here.

inline Tensors normal(const std::string& line) { return Tensors(line, 5); }

// Texts of 64 tokens in one sequence: a logit within one is 32 (natural) above those between two.
inline Tensors packed_texts(const std::string& line) {
  Tensors t(line, 5);
  for (auto* tensor : {&t.q, &t.k}) {
    for (std::int64_t row = 0; row < t.count(*tensor) / 64; ++row) {
      const std::int64_t at = row * 64 + row % t.p.sq / 64;
      t.set(*tensor, at, t.at(*tensor, at) + 16.f);
    }
  }
  return t;
}

// Logits fall by `slope` (natural) for every key that lies further back.
inline Tensors distance_bias(const std::string& line, float slope) {
  Tensors t(line, 5);
  for (std::int64_t row = 0; row < t.count(t.q) / 64; ++row) {
    t.set(t.q, row * 64, 8 * slope);
    t.set(t.k, row * 64, static_cast<float>(row % t.p.sk));
  }
  return t;
}

// q, k, v of a trained model's first layer on a real text: 12 heads of 32, 331 tokens.
inline Tensors trained_model(DType element) {
  Tensors t("fwd " + std::string(name_of(element)) + " b1 h12 s331 d32");
  const auto fill = [&](const char* name, std::vector<std::byte>& tensor) {
    const Array array =
        read_safetensors(DFA_SOURCE_DIR "/examples/data/minilm_layer0_qkv.safetensors", name);
    for (std::int64_t i = 0; i < array.count(); ++i) {
      t.set(tensor, i, static_cast<float>(array.at(i)));
    }
  };
  fill("q", t.q);
  fill("k", t.k);
  fill("v", t.v);
  return t;
}

}  // namespace dfa::emulated
