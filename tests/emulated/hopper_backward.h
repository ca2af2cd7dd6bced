#pragma once

// Before anything of the kernels:
#include "emulated/warps.h"
// and then:
#include <optional>
#include <utility>

#include "emulated/hopper.h"
#include "kernels/backward/delta.cuh"
#include "kernels/backward/sink_gradient.cuh"
#include "kernels/backward/sm80_bias_gradient.cuh"
#include "kernels/backward/sm90_dq.cuh"
#include "kernels/schedule/sequence_tiles.cuh"
#include "plan/schedule.h"
#include "plan/select_backward.h"
#include "reference/backend.h"
#include "spec/config_text.h"

// What Hopper's backward kernels in 16 bits are tested with on a processor.
namespace dfa::emulated {

// o and lse as fp64 has them.
inline Tensors with_forward(Tensors t) {
  const Backend& truth = reference_backend();
  Problem p = t.p;
  p.pass = Pass::forward;
  truth.forward(truth.plan(p, {.backend = "reference"}), t.forward_args(), {});
  return t;
}
inline Tensors with_forward(const std::string& line) { return with_forward(Tensors(line, 5)); }

// The sinks' gradient, whose launch behind that of delta is taken from the list.
template <BackwardConfig kConfig>
void run_sinks(std::vector<KernelLaunch>& launches, const KernelArgs& args) {
  for (auto one = launches.begin(); one != launches.end(); ++one) {
    if (one->name != "dsinks") continue;
    launch(one->grid, one->threads, [&] { sink_gradient<kConfig.element, kConfig.varlen>(args); });
    launches.erase(one);
    return;
  }
}

// The bias's gradient, by the portable kernel that stands beside Hopper's, in the tile of the plan.
template <BackwardConfig kConfig>
void run_biases(std::vector<KernelLaunch>& launches, const Problem& p, const KernelArgs& args) {
  if constexpr (kConfig.bias) {
    const auto one = std::ranges::find(launches, "dbias", &KernelLaunch::name);
    ASSERT_NE(one, launches.end());
    if (args.logits.bias.gradients == nullptr) {
      launches.erase(one);
      return;
    }
    const BackwardConfig planned = bias_gradient_config(p);
    bool ran = false;
    const auto run_in_tile = [&]<int kBlockQ, int kBlockK>() {
      constexpr BackwardConfig kPortable = [] {
        BackwardConfig c = kConfig;
        c.target = Target::cuda_sm80;
        c.dq_block_q = kBlockQ;
        c.dq_block_k = kBlockK;
        return c;
      }();
      if (ran || planned.dq_block_q != kBlockQ || planned.dq_block_k != kBlockK) return;
      EXPECT_EQ(planned.dq_warps, kPortable.dq_warps);
      launch(one->grid, one->threads, [&] { sm80_bias_gradient<kPortable>(args); });
      ran = true;
    };
    run_in_tile.template operator()<128, 64>();
    run_in_tile.template operator()<128, 32>();
    run_in_tile.template operator()<64, 64>();
    run_in_tile.template operator()<64, 32>();
    EXPECT_TRUE(ran) << to_text(planned);
    launches.erase(one);
  }
}

// keys(args): the kernel of dk, dv and the sums of dq. `sms`: of a grid that stays.
template <BackwardConfig kConfig, typename Keys>
void run_backward(Tensors& t, const Keys& keys, int sms = 4) {
  auto launches = backward_launches(t.p, kConfig);
  Workspace workspace(backward_workspace_bytes(t.p, kConfig));
  BackwardArgs pointers = t.backward_args();
  pointers.workspace = workspace.data();
  const cuda::HopperBackwardArgs all(t.p, kConfig, sms);
  Sm90BackwardArgs args = all.with(pointers);
  if constexpr (kConfig.varlen) {
    launch(launches[0].grid, launches[0].threads, [&] { sequence_tiles(args.args); });
    launches.erase(launches.begin());
  }
  launch(launches[0].grid, launches[0].threads,
         [&] { delta<kConfig.element, kConfig.varlen>(args.args); });
  run_sinks<kConfig>(launches, args.args);
  KernelArgs of_biases = all.bias_gradient(args.args);
  if (adds_bias_gradient(t.p, kConfig)) {
    std::ranges::fill(t.d_bias, 0.f);
    of_biases.logits.bias.gradients = nullptr;
  } else {
    args.args.logits.bias.gradients = nullptr;
  }
  run_biases<kConfig>(launches, t.p, of_biases);
  if (kConfig.persistent) {
    launches[1].grid = persistent_grid(t.p, kConfig, select_persistent_clusters(t.p, kConfig, sms));
  }
  workspace.zero(launches[1].zeroed);
  launch(
      launches[1].grid, launches[1].threads, [&] { keys(args); }, launches[1].cluster);
  if (kConfig.dq_fused()) return;
  launch(launches[2].grid, launches[2].threads, [&] { sm90_dq<kConfig>(args.args); });
}

inline bool same_gradients(const Tensors& a, const Tensors& b) {
  return a.dq == b.dq && a.dk == b.dk && a.dv == b.dv && a.d_sinks == b.d_sinks &&
         a.d_bias == b.d_bias;
}

// The reference judges bits that it has not judged: those of sums in a fixed order it sees once,
// whatever the timing.
template <BackwardConfig kConfig, typename Keys>
void expect_gradients(const Tensors& asked_for, const std::string& line,
                      std::initializer_list<Timing> timings, const Keys& keys, int sms = 4) {
  expect_legal(kConfig, asked_for.p);
  std::optional<Tensors> judged;
  for (const Timing asked : timings) {
    Tensors t = asked_for;
    const WithTiming with(asked);
    run_backward<kConfig>(t, keys, sms);
    if (judged && same_gradients(t, *judged)) continue;
    expect_met(check_backward(t.p, t.backward_args()), line);
    judged = std::move(t);
  }
}
template <BackwardConfig kConfig, typename Keys>
void expect_gradients(const std::string& line, std::initializer_list<Timing> timings,
                      const Keys& keys, int sms = 4) {
  expect_gradients<kConfig>(with_forward(line), line, timings, keys, sms);
}

}  // namespace dfa::emulated
