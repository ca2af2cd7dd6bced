#include "kernels/launch_parts.h"
#include "spec/config_text.h"

// Hopper's forward in e4m3: v is transposed into the workspace, then attention; or in it.
namespace dfa {

using namespace launch_parts;

std::int64_t value_tiles_of_head(const Problem& p, const ForwardConfig& c) {
  return p.packed() ? most_tiles(p, p.total_k, c.block_k) : tiles_of(p.sk, c.block_k);
}

namespace launch_parts {

std::vector<KernelLaunch> e4m3_forward_launches(const Problem& p, const ForwardConfig& c) {
  const std::string config = qualified(to_text(c));
  std::vector<KernelLaunch> launches;
  if (!c.transpose_values) {
    launches.push_back({.name = "pack v",
                        .source = "kernels/forward/pack_values.cuh",
                        .entry = "dfa::pack_values<" + config + ">",
                        .grid = grid(value_tiles_of_head(p, c) * p.batches() * p.hk),
                        .threads = kPackThreads,
                        .smem_bytes = count(c.block_k * packed_pitch(c.value_dim))});
  }
  launches.push_back({.name = "forward",
                      .source = "kernels/forward/sm90_e4m3_forward.cuh",
                      .entry = "dfa::sm90_e4m3_forward<" + config + ">",
                      .grid = grid(all_work_tiles(p, c) * c.cluster),
                      .threads = count(c.threads()),
                      .smem_bytes = count(c.smem_bytes()),
                      .cluster = count(c.cluster)});
  return launches;
}

std::size_t e4m3_forward_bytes(const Problem& p, const ForwardConfig& c) {
  if (c.transpose_values) return 0;
  return static_cast<std::size_t>(value_tiles_of_head(p, c) * c.block_k * c.value_dim *
                                  p.batches() * p.hk);
}

}  // namespace launch_parts

PackValuesArgs pack_values_args(const Problem& p, const ForwardConfig& c,
                                const ForwardArgs& pointers) {
  return {.from = pointers.v,
          .to = static_cast<char*>(pointers.workspace) + value_tiles_at(p, c),
          .strides = strides_of(p.v()),
          .heads = static_cast<int>(p.hk),
          .keys = static_cast<int>(p.packed() ? p.total_k : p.sk),
          .columns = static_cast<int>(p.dv),
          .tiles = static_cast<int>(value_tiles_of_head(p, c)),
          .sequences = p.packed() ? static_cast<int>(p.b) : 0,
          .cu_seqlens_k = pointers.sequences.cu_seqlens_k,
          .seqused_k = pointers.sequences.seqused_k};
}

}  // namespace dfa
