#pragma once

#include "cpu/engine.h"
#include "cpu/flash_backward.h"
#include "cpu/flash_forward.h"

namespace dfa::cpu {

// The engine of a target whose products are Math's.
template <class Math>
constexpr Engine make_engine(Target target) {
  using Forward = FlashForward<Math>;
  using Backward = FlashBackward<Math>;
  return {.target = target,
          .packed_kv_bytes = Forward::packed_kv_bytes,
          .forward_scratch_bytes = Forward::scratch_bytes,
          .pack_kv = Forward::pack_kv,
          .forward_tile = Forward::tile,
          .backward_packed_kv_bytes = Backward::packed_kv_bytes,
          .packed_q_bytes = Backward::packed_q_bytes,
          .dq_sums_floats = Backward::dq_sums_floats,
          .backward_scratch_bytes = Backward::scratch_bytes,
          .backward_pack_kv = Backward::pack_kv,
          .pack_q = Backward::pack_q,
          .backward_tile = Backward::tile,
          .finish_dq = Backward::finish_dq};
}

}  // namespace dfa::cpu
