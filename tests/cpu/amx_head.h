#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cpu/engine.h"

// Attention of one (b, hk) and its query heads through an engine, without the driver: what the test
// of the AMX engine and its speed program run.
namespace dfa::cpu {

struct AlignedFree {
  void operator()(void* pointer) const { std::free(pointer); }
};
using Buffer = std::unique_ptr<std::byte, AlignedFree>;

// Filled with NaN patterns: what an engine does not write must not be read.
inline Buffer buffer(std::size_t bytes) {
  const std::size_t size = (bytes + 63) / 64 * 64 + 64;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, size));
  for (std::size_t i = 0; i < size; ++i) memory[i] = std::byte{0xff};
  return Buffer(memory);
}

struct HeadTensors {
  std::vector<std::uint16_t> q, k, v, o, d_o, dq, dk, dv;
  std::vector<float> lse;
  int group = 1;
};

class HeadForward {
 public:
  HeadForward(const Engine& engine, const ForwardConfig& config, const HeadShape& shape)
      : engine_(engine),
        config_(config),
        shape_(shape),
        packed_(buffer(engine.packed_kv_bytes(config, shape))),
        scratch_(buffer(engine.forward_scratch_bytes(config, shape))) {}

  // In tiles of `rows` query rows; 0: block_q.
  void run(HeadTensors& t, std::int64_t rows = 0) const {
    if (rows == 0) rows = config_.block_q;
    for (std::int64_t key = 0; key < shape_.sk; key += config_.block_k) {
      const std::int64_t end =
          key + config_.block_k < shape_.sk ? key + config_.block_k : shape_.sk;
      // Blocks by turns out of the whole tensors, and out of those that begin with the block.
      const std::int64_t first = key / config_.block_k % 2 == 0 ? 0 : key;
      engine_.pack_kv(config_, shape_,
                      {t.k.data() + first * shape_.k_row, t.v.data() + first * shape_.v_row,
                       packed_.get(), key, end, first});
    }
    for (int head = 0; head < t.group; ++head) {
      for (std::int64_t q = 0; q < shape_.sq; q += rows) {
        const std::int64_t end = q + rows < shape_.sq ? q + rows : shape_.sq;
        engine_.forward_tile(
            config_, shape_,
            {t.q.data() + head * shape_.sq * shape_.q_row,
             t.o.data() + head * shape_.sq * shape_.o_row, t.lse.data() + head * shape_.sq,
             packed_.get(), scratch_.get(), q, end});
      }
    }
  }

 private:
  const Engine& engine_;
  const ForwardConfig& config_;
  const HeadShape& shape_;
  Buffer packed_, scratch_;
};

class HeadBackward {
 public:
  // `splits` ranges of keys, each with its own share of dq.
  HeadBackward(const Engine& engine, const BackwardConfig& config, const HeadShape& shape,
               int group, int splits)
      : engine_(engine),
        config_(config),
        shape_(shape),
        splits_(splits),
        kv_(buffer(engine.backward_packed_kv_bytes(config, shape))),
        q_bytes_(engine.packed_q_bytes(config, shape)),
        q_(buffer(q_bytes_ * static_cast<std::size_t>(group))),
        dq_floats_(engine.dq_sums_floats(config, shape)),
        dq_(buffer(4 * dq_floats_ * static_cast<std::size_t>(group * splits))),
        scratch_(buffer(engine.backward_scratch_bytes(config, shape))) {}

  void run(HeadTensors& t) const {
    engine_.backward_pack_kv(config_, shape_, {t.k.data(), t.v.data(), kv_.get(), 0, shape_.sk});
    for (int head = 0; head < t.group; ++head) {
      const std::int64_t q = head * shape_.sq * shape_.q_row, o = head * shape_.sq * shape_.o_row;
      engine_.pack_q(
          config_, shape_,
          {t.q.data() + q, t.o.data() + o, t.d_o.data() + o, t.lse.data() + head * shape_.sq,
           q_.get() + q_bytes_ * static_cast<std::size_t>(head), 0, shape_.sq});
    }
    const std::int64_t blocks = (shape_.sk + config_.block_k - 1) / config_.block_k;
    for (int split = 0; split < splits_; ++split) {
      const std::int64_t begin = blocks * split / splits_ * config_.block_k;
      const std::int64_t end = blocks * (split + 1) / splits_ * config_.block_k;
      engine_.backward_tile(
          config_, shape_,
          {kv_.get(), q_.get(), q_bytes_, share(0, split),
           dq_floats_ * static_cast<std::size_t>(splits_), t.group, t.dk.data(), t.dv.data(),
           scratch_.get(), begin, end < shape_.sk ? end : shape_.sk});
    }
    for (int head = 0; head < t.group; ++head) {
      engine_.finish_dq(config_, shape_,
                        {share(head, 0), dq_floats_, splits_,
                         t.dq.data() + head * shape_.sq * shape_.q_row, 0, shape_.sq});
    }
  }

 private:
  float* share(int head, int split) const {
    return reinterpret_cast<float*>(dq_.get()) +
           dq_floats_ * static_cast<std::size_t>(head * splits_ + split);
  }

  const Engine& engine_;
  const BackwardConfig& config_;
  const HeadShape& shape_;
  int splits_;
  Buffer kv_;
  std::size_t q_bytes_;
  Buffer q_;
  std::size_t dq_floats_;
  Buffer dq_, scratch_;
};

}  // namespace dfa::cpu
