#pragma once

#include "cpu/amx_backward.h"
#include "cpu/amx_forward.h"

// The engine's table for a tile provider.
namespace dfa::cpu::amx {
namespace {

template <class Tiles>
struct Functions {
  static std::size_t packed_kv_bytes(const ForwardConfig& config, const HeadShape& shape) {
    return ForwardKv(shape.sk, shape.d, shape.dv, config.block_k).total();
  }
  static std::size_t forward_scratch_bytes(const ForwardConfig& config, const HeadShape& shape) {
    return ForwardScratch(config, shape.d, shape.dv).total;
  }
  static void pack_kv(const ForwardConfig& config, const HeadShape& shape, const PackKv& part) {
    pack_forward_kv(config, shape, part);
  }
  static void forward_tile(const ForwardConfig& config, const HeadShape& shape,
                           const ForwardTile& tile) {
    Forward<Tiles>(config, shape, tile).run();
  }
  static std::size_t backward_packed_kv_bytes(const BackwardConfig&, const HeadShape& shape) {
    return BackwardKv(shape.sk, shape.d, shape.dv).total();
  }
  static std::size_t packed_q_bytes(const BackwardConfig&, const HeadShape& shape) {
    return BackwardQ(shape.sq, shape.d, shape.dv).total();
  }
  static std::size_t dq_sums_floats(const BackwardConfig&, const HeadShape& shape) {
    return static_cast<std::size_t>(units(shape.sq) * units(shape.d)) * kUnit * kUnit;
  }
  static std::size_t backward_scratch_bytes(const BackwardConfig& config, const HeadShape& shape) {
    return BackwardScratch(config, shape.d, shape.dv).total;
  }
  static void backward_pack_kv(const BackwardConfig&, const HeadShape& shape, const PackKv& part) {
    pack_backward_kv(shape, part);
  }
  static void pack_q(const BackwardConfig&, const HeadShape& shape, const PackQ& part) {
    pack_backward_q(shape, part);
  }
  static void backward_tile(const BackwardConfig& config, const HeadShape& shape,
                            const BackwardTile& tile) {
    Backward<Tiles>(config, shape, tile).run();
  }
  static void finish_dq(const BackwardConfig&, const HeadShape& shape, const FinishDq& part) {
    finish_dq_rows(shape, part);
  }
};

template <class Tiles>
constexpr Engine make_engine() {
  using F = Functions<Tiles>;
  return {.target = Target::cpu_amx,
          .long_tiles = true,
          .packed_kv_bytes = F::packed_kv_bytes,
          .forward_scratch_bytes = F::forward_scratch_bytes,
          .pack_kv = F::pack_kv,
          .forward_tile = F::forward_tile,
          .backward_packed_kv_bytes = F::backward_packed_kv_bytes,
          .packed_q_bytes = F::packed_q_bytes,
          .dq_sums_floats = F::dq_sums_floats,
          .backward_scratch_bytes = F::backward_scratch_bytes,
          .backward_pack_kv = F::backward_pack_kv,
          .pack_q = F::pack_q,
          .backward_tile = F::backward_tile,
          .finish_dq = F::finish_dq};
}

}  // namespace
}  // namespace dfa::cpu::amx
