#include "cpu/avx512_bf16.h"
#include "cpu/cpuid.h"
#include "cpu/engine.h"
#include "cpu/matrix.h"
#include "cpu/peak.h"
#include "cpu/simd_avx512.h"
#include "cpu/simd_engine.h"

namespace dfa::cpu {
namespace {

constexpr Engine kFp32 = make_engine<Fp32Math<Avx512>>(Target::cpu_avx512);

const Engine& engine_for(DType element) {
  const bool dots = element == DType::bf16 && has_avx512_bf16();
  return dots ? avx512_bf16_engine() : kFp32;
}

// One function of the engine that the element type asks for: Route<&Engine::pack_kv>::call.
template <auto kFunction>
struct Route;
template <class Result, class Config, class... Args, Result (*Engine::*kFunction)(Config, Args...)>
struct Route<kFunction> {
  static Result call(Config config, Args... args) {
    return (engine_for(config.element).*kFunction)(config, args...);
  }
};

constexpr Engine kEngine{.target = Target::cpu_avx512,
                         .packed_kv_bytes = Route<&Engine::packed_kv_bytes>::call,
                         .forward_scratch_bytes = Route<&Engine::forward_scratch_bytes>::call,
                         .pack_kv = Route<&Engine::pack_kv>::call,
                         .forward_tile = Route<&Engine::forward_tile>::call,
                         .backward_packed_kv_bytes = Route<&Engine::backward_packed_kv_bytes>::call,
                         .packed_q_bytes = Route<&Engine::packed_q_bytes>::call,
                         .dq_sums_floats = Route<&Engine::dq_sums_floats>::call,
                         .backward_scratch_bytes = Route<&Engine::backward_scratch_bytes>::call,
                         .backward_pack_kv = Route<&Engine::backward_pack_kv>::call,
                         .pack_q = Route<&Engine::pack_q>::call,
                         .backward_tile = Route<&Engine::backward_tile>::call,
                         .finish_dq = Route<&Engine::finish_dq>::call};
constexpr MatrixKernels kMatrix = make_matrix_kernels<Fp32Math<Avx512>>();
constexpr PeakLoop kPeak = Peak<Fp32Math<Avx512>>::loop();

}  // namespace

const Engine& avx512_engine() { return kEngine; }
const MatrixKernels& avx512_matrix() { return kMatrix; }
const PeakLoop& avx512_peak() { return kPeak; }

}  // namespace dfa::cpu
