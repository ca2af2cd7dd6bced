#include <algorithm>

#include "kernels/launch_parts.h"
#include "spec/config_text.h"

namespace dfa {
namespace {

using namespace launch_parts;

constexpr const char* kForwardSource = "kernels/forward/sm90_fp32x3_forward.cuh";
constexpr const char* kBackwardSource = "kernels/backward/sm90_fp32x3_backward.cuh";
constexpr int kPartBytes = 2;
constexpr int kBarrierBytes = 8;

std::int64_t q_elements(const Problem& p) { return p.b * p.hq * p.sq * p.d; }
std::int64_t k_elements(const Problem& p) { return p.b * p.hk * p.sk * p.d; }
std::int64_t v_elements(const Problem& p) { return p.b * p.hk * p.sk * p.dv; }
std::int64_t o_elements(const Problem& p) { return p.b * p.hq * p.sq * p.dv; }

std::size_t plane_bytes(std::int64_t elements) {
  return static_cast<std::size_t>(kPlanes * kPartBytes * elements);
}

Fp32x3Tensor fp32x3_tensor(const void* from, char* planes, const Problem& p, const Strides& strides,
                           std::int64_t heads, std::int64_t rows, std::int64_t columns) {
  return {.from = static_cast<const float*>(from),
          .planes = planes,
          .strides = strides_of(strides),
          .heads = static_cast<int>(heads),
          .rows = static_cast<int>(rows),
          .columns = static_cast<int>(columns),
          .chunks = p.b * heads * rows * columns / kPlanesColumns};
}

struct Planes {
  char *q, *k, *v;
};

Fp32x3PlanesArgs inputs(const Problem& p, const void* q, const void* k, const void* v,
                        const Planes& to) {
  return {{fp32x3_tensor(q, to.q, p, p.q(), p.hq, p.sq, p.d),
           fp32x3_tensor(k, to.k, p, p.k(), p.hk, p.sk, p.d),
           fp32x3_tensor(v, to.v, p, p.v(), p.hk, p.sk, p.dv)}};
}

KernelLaunch planes_launch(const char* source, std::int64_t elements) {
  return {.name = "planes",
          .source = source,
          .entry = "dfa::fp32x3_planes<dfa::DType::bf16>",
          .grid = grid(tiles_of(elements / kPlanesColumns, kPlanesThreads)),
          .threads = kPlanesThreads};
}

KernelLaunch delta_launch(const Problem& p, const BackwardConfig& c) {
  const int tile = kPlanes * kPartBytes * kGroupRows * round_up(c.value_dim, 64);
  return {.name = "delta",
          .source = kBackwardSource,
          .entry = "dfa::sm90_fp32x3_delta<" + std::to_string(c.value_dim) + ">",
          .grid = grid(padded_rows(p) / kGroupRows * p.b * p.hq),
          .threads = kGroupThreads,
          .smem_bytes = count(2 * tile + kBarrierBytes)};
}

// Where planes begin in the backward's workspace.
std::size_t planes_at(const Problem& p, const BackwardConfig& c) {
  constexpr std::size_t kAlignment = 64;
  const ZeroedBytes semaphores = dq_semaphores_of(p, c);
  return (semaphores.offset + semaphores.bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Planes of o are read before those of q are written, and lie there.
std::size_t shared_bytes(const Problem& p) {
  return plane_bytes(std::max(q_elements(p), o_elements(p)));
}

}  // namespace

namespace launch_parts {

std::vector<KernelLaunch> fp32x3_forward_launches(const Problem& p, const ForwardConfig& c) {
  return {planes_launch(kForwardSource, q_elements(p) + k_elements(p) + v_elements(p)),
          {.name = "forward",
           .source = kForwardSource,
           .entry = "dfa::sm90_fp32x3_forward<" + qualified(to_text(c)) + ">",
           .grid = grid(tiles_of(p.sq, c.block_q) * p.b * p.hq),
           .threads = count(c.threads()),
           .smem_bytes = count(c.smem_bytes())}};
}

std::vector<KernelLaunch> fp32x3_backward_launches(const Problem& p, const BackwardConfig& c) {
  const std::string config = qualified(to_text(c));
  return {planes_launch(kBackwardSource, 2 * o_elements(p)),
          delta_launch(p, c),
          planes_launch(kBackwardSource, q_elements(p) + k_elements(p) + v_elements(p)),
          {.name = "dk dv",
           .source = kBackwardSource,
           .entry = "dfa::sm90_fp32x3_backward<" + config + ">",
           .grid = grid(tiles_of(p.sk, c.block_k) * p.b * p.hk),
           .threads = count(c.threads()),
           .smem_bytes = count(c.smem_bytes()),
           .zeroed = dq_semaphores_of(p, c)},
          {.name = "dq",
           .source = kBackwardSource,
           .entry = "dfa::sm90_fp32x3_dq<" + config + ">",
           .grid = grid(tiles_of(p.sq, c.block_q) * p.b * p.hq),
           .threads = kGroupThreads}};
}

std::size_t fp32x3_forward_bytes(const Problem& p) {
  return plane_bytes(q_elements(p) + k_elements(p) + v_elements(p));
}

std::size_t fp32x3_backward_bytes(const Problem& p, const BackwardConfig& c) {
  return planes_at(p, c) + shared_bytes(p) +
         plane_bytes(k_elements(p) + v_elements(p) + o_elements(p));
}

}  // namespace launch_parts

Fp32x3PlanesArgs fp32x3_planes_args(const Problem& p, const ForwardArgs& pointers) {
  auto* q = static_cast<char*>(pointers.workspace);
  char* k = q + plane_bytes(q_elements(p));
  return inputs(p, pointers.q, pointers.k, pointers.v, {q, k, k + plane_bytes(k_elements(p))});
}

BackwardPlanes fp32x3_planes_args(const Problem& p, const BackwardConfig& c,
                                  const BackwardArgs& pointers) {
  char* q = static_cast<char*>(pointers.workspace) + planes_at(p, c);
  char* k = q + shared_bytes(p);
  char* v = k + plane_bytes(k_elements(p));
  char* d_o = v + plane_bytes(v_elements(p));
  const auto of_rows = [&](const void* from, char* planes) {
    return fp32x3_tensor(from, planes, p, p.o(), p.hq, p.sq, p.dv);
  };
  return {.rows = {{of_rows(pointers.o, q), of_rows(pointers.d_o, d_o), {}}},
          .inputs = inputs(p, pointers.q, pointers.k, pointers.v, {q, k, v})};
}

}  // namespace dfa
