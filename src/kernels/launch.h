#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dfa/attention.h"
#include "kernels/args.h"
#include "kernels/forward/sm90_e4m3_args.h"
#include "kernels/forward/sm90_fp32x3_args.h"
#include "kernels/forward/split_kv_args.h"
#include "kernels/schedule/block_args.h"
#include "kernels/schedule/block_order.h"
#include "kernels/schedule/split_kv.h"
#include "kernels/schedule/tile_scheduler.h"
#include "spec/config.h"

// What a backend has to know to run a pass: which kernels, in which order, on which grid, and where
// the workspace lies. Every kernel takes one KernelArgs by value.
namespace dfa {

// Bytes of the workspace that a kernel wants to be zero.
struct ZeroedBytes {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

struct KernelLaunch {
  std::string name;         // for log lines: "forward", "delta", "dk dv", "dq"
  std::string source;       // the header that defines the kernel, as included
  std::string entry;        // the name expression, fully qualified
  unsigned grid = 1;        // thread blocks, in x
  unsigned threads = 1;     // of a block, in x
  unsigned smem_bytes = 0;  // dynamic
  unsigned cluster = 1;     // thread blocks of a cluster, from sm_90 on
  ZeroedBytes zeroed{};     // before it starts
  std::string preamble{};   // text that goes ahead of the source (user_text_source)
};

// Requires validate_config(config, problem, limits). A forward of cuda_sm90 runs on any grid: the
// one given has a block for every tile of queries.
std::vector<KernelLaunch> forward_launches(const Problem& problem, const ForwardConfig& config);
std::vector<KernelLaunch> backward_launches(const Problem& problem, const BackwardConfig& config);

// Does Hopper's kernel of dk add up the gradient of a bias, which is zeroed before, in the place of
// the portable kernel of its own? Its bits change from run to run where several heads or batches
// add to the same.
bool adds_bias_gradient(const Problem& problem, const BackwardConfig& config);

// Dq semaphores that the kernel of delta zeroes before a backward of cuda_sm90 in 16 bits; of
// others a launch names them as `zeroed`.
int dq_semaphore_count(const Problem& problem, const BackwardConfig& config);

// The grid of a backward that rounds dq as well (DqAccumulation).
RoundingOrder rounding_order(const Problem& problem, const BackwardConfig& config);

// The grid of the kernel of dk and dv where so many clusters stay (select_persistent_clusters),
// with those that round dq at the end. The grid given by backward_launches() has one for every work
// tile.
unsigned persistent_grid(const Problem& problem, const BackwardConfig& config,
                         int persistent_clusters);

// What a forward of cuda_sm90 walks through on a grid of `blocks`.
TileGrid forward_tile_grid(const Problem& problem, const ForwardConfig& config, int blocks);

// check_rows, on as many rows. Requires d, dv of at most 256.
KernelLaunch rows_launch(const Problem& problem, int rows);

// 64-byte alignment. The forward of cuda_sm90 keeps planes of q, k and v there in fp32, v
// transposed in e4m3, what splits leave where keys are split, and the order of work tiles of lists.
// Its fp32 backward has planes made again, as nobody keeps the workspace of a forward, and those of
// do.
std::size_t forward_workspace_bytes(const Problem& problem, const ForwardConfig& config);

// Where work tiles are dealt out in splits (ForwardConfig::num_splits).
SplitKv split_kv(const Problem& problem, const ForwardConfig& config);

// What splits leave in the workspace: the output, and lse behind it.
struct SplitPartials {
  int of_head;  // work tiles of a head
  int rows;     // of a piece
  std::int64_t output_floats, lse_floats;
};
SplitPartials split_partials(const Problem& problem, const ForwardConfig& config);
std::size_t backward_workspace_bytes(const Problem& problem, const BackwardConfig& config);

// What fp32x3_planes does with q, k and v, and where in the workspace.
Fp32x3PlanesArgs fp32x3_planes_args(const Problem& problem, const ForwardArgs& pointers);

// Of Hopper's forward in e4m3: where pack_values leaves v in the workspace, in bytes, and how many
// tiles of keys it leaves of a head, of packed sequences of all of them.
std::size_t value_tiles_at(const Problem& problem, const ForwardConfig& config);
std::int64_t value_tiles_of_head(const Problem& problem, const ForwardConfig& config);

// What pack_values does with v.
PackValuesArgs pack_values_args(const Problem& problem, const ForwardConfig& config,
                                const ForwardArgs& pointers);

// The same before a backward: what is split for delta, o and do, and then q, k and v.
struct BackwardPlanes {
  Fp32x3PlanesArgs rows, inputs;
};
BackwardPlanes fp32x3_planes_args(const Problem& problem, const BackwardConfig& config,
                                  const BackwardArgs& pointers);

KernelArgs kernel_args(const Problem& problem);  // all but the pointers
// The same of kernels of packed sequences, which list tiles of so many rows (PackedArgs).
KernelArgs kernel_args(const Problem& problem, const ForwardConfig& config);
KernelArgs kernel_args(const Problem& problem, const BackwardConfig& config);
// Key heads alternate, so many at once, and in the end as many as are left.
void alternate(KernelArgs& args, int head_swizzle);
KernelArgs with_pointers(KernelArgs args, const ForwardArgs& pointers);
KernelArgs with_pointers(KernelArgs args, const BackwardArgs& pointers);  // and the workspace

// The same of problems with lists of blocks.
BlockKernelArgs block_kernel_args(const Problem& problem, const KernelArgs& args);
BlockKernelArgs with_pointers(BlockKernelArgs args, const ForwardArgs& pointers);
BlockKernelArgs with_pointers(BlockKernelArgs args, const BackwardArgs& pointers);

// Their parts, for kernels with arguments of their own, and the order of the work tiles of a
// forward of cuda_sm90, which is all of its workspace.
BlockArgs block_args(const Problem& problem);
BlockArgs with_pointers(BlockArgs args, const BlockLists& lists);
BlockOrderArgs block_order_args(const Problem& problem, const ForwardConfig& config,
                                void* workspace);

// The same of ForwardConfig::split_kv.
SplitKvForwardArgs split_kv_args(const Problem& problem, const ForwardConfig& config);
SplitKvForwardArgs with_pointers(SplitKvForwardArgs args, const ForwardArgs& pointers);

// Pointers are moved 16 bytes at a time: o and the inputs must be aligned so.
inline constexpr std::size_t kPointerAlignment = 16;

// Options every kernel compiles with, beside the architecture.
inline constexpr const char* kCompileOptions[] = {"-default-device"};

}  // namespace dfa
