#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dfa/error.h"
#include "dfa/export.h"
#include "dfa/problem.h"

namespace dfa {

enum class Algorithm : int { automatic, standard, flash };

// What the caller wants of a plan; the defaults let the library choose.
struct PlanOptions {
  std::string backend = "auto";  // auto | cpu | cuda | reference
  Algorithm algorithm = Algorithm::automatic;
  std::string config{};  // configuration text, empty: chosen
  int threads = 0;       // CPU threads, 0: all this process may use
};

// What a backend made ready for a plan so as not to do it at each call; backends look inside.
class ReadyPlan {
 public:
  virtual ~ReadyPlan() = default;

  // Would its backend plan the same now? What it chose by may have changed: the device.
  virtual bool current() const = 0;

  // Is it for as many multiprocessors as the calling thread's context has? Costs next to nothing.
  virtual bool fits_context() const { return true; }

  // What compiling its kernels warned of, of those that were loaded so far.
  virtual std::vector<std::string> warnings() const { return {}; }

  // Is it for all of its device? Then it runs in one context, which has one default stream.
  virtual bool has_whole_device() const { return true; }
};

// Copies of a plan share it. It is no part of a plan's value: a plan without it, read from a file
// or written by hand, runs the same.
struct Ready {
  std::shared_ptr<const ReadyPlan> plan{};

  friend bool operator==(const Ready&, const Ready&) { return true; }
};

// What will run and why. A plain value: print it, store it, compare it.
struct Plan {
  Problem problem;
  Algorithm algorithm = Algorithm::flash;
  std::string backend;
  std::string config{};  // forward configuration as text, e.g. ".target=…, .block_q=64, …"
  std::string backward_config{};  // empty unless the pass has a backward
  std::string origin{};           // how the configuration came about: default | forced | measured
  std::string why{};              // one sentence
  int threads = 1;
  std::size_t workspace_bytes = 0;      // scratch that forward() and backward() need
  std::size_t probabilities_bytes = 0;  // what forward() leaves for backward(), where that is asked
  double forward_flops = 0;
  double backward_flops = 0;
  int forward_sms = 0;   // multiprocessors of which Queue::sm_budget chooses a number;
  int backward_sms = 0;  // 0: the kernels take no budget
  Ready ready{};

  friend bool operator==(const Plan&, const Plan&) = default;
};

// Where packed sequences lie (Problem::packed): pointers to int32, on the host for the CPU, on the
// device for a GPU, where kernels read them: nobody waits for lengths, and a CUDA graph may be
// replayed with others. Sequence i has the rows of q from cu_seqlens_q[i] to cu_seqlens_q[i + 1],
// or the first seqused_q[i] of them where that is given; of k and v likewise. Rows that are of
// none, padding left or right, are not read: o and gradients are zeros there, lse is -inf. The CPU
// throws InvalidArgument where begins fall or leave the tensors; kernels cut them to what is there.
//
// Paged (Problem::paged), row j of sequence i is row j % page of the page block_table[i * table_row
// + j / page]; it has the rows from leftpad_k[i], or 0, to seqused_k[i], and no cu_seqlens_k.
// Nothing else of the cache is read, so that entries behind are free, -1 by custom; where
// cu_seqlens_q is null, each has sq rows. The CPU throws InvalidArgument where an entry that is
// needed is no page; kernels read zeros there.
struct Sequences {
  const std::int32_t* cu_seqlens_q = nullptr;  // [b + 1]
  const std::int32_t* cu_seqlens_k = nullptr;
  const std::int32_t* seqused_q = nullptr;  // [b], may be null
  const std::int32_t* seqused_k = nullptr;
  const std::int32_t* block_table = nullptr;  // [b, columns]
  std::int64_t table_row = 0;                 // elements from one sequence's entries to the next's
  const std::int32_t* leftpad_k = nullptr;    // [b], may be null; of paged problems
};

// What problems with alibi, bias, sink or dropout read, on the host for the CPU, on the device for
// a GPU; else not looked at. Slopes and sinks are fp32.
struct Logits {
  const float* alibi_slopes = nullptr;  // [hq], or [b, hq]; of packed sequences b counts those
  std::int64_t slopes_of_batch = 0;     // elements from one batch's slopes to the next's: 0 or hq
  const float* sinks = nullptr;         // [hq]
  const void* bias = nullptr;           // of Problem::bias's sizes and element type
  // Of the bias, in elements; all 0: it is dense. Keys are contiguous.
  Strides bias_strides{};
  // Seed and offset, as a generator of PyTorch has them; null: the problem's seed, and 0.
  const std::uint64_t* dropout = nullptr;
  std::int64_t dropout_batch = 0;  // of masks, and of b in texts, that of the first
};

// What the numbers of a tensor in e4m3 are multiplied by, fp32, on the host for the CPU, on the
// device for a GPU: one for each batch and key head, [b, hk], and where Problem::descale_rows says
// so each block of rows, [b, hk, blocks]. Strides in elements; 0: one for all. Of packed sequences
// b counts those, and of a paged cache too.
struct Descale {
  const float* values = nullptr;  // null: 1
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t block = 0;
};

// Of problems in e4m3, or whose k and v are (Problem::kv); else not looked at. Query heads have
// that of the key head that they read.
//   o = softmax(scale (q q8) (k k8)^T + mask) (v v8), of q8, k8, v8 as they are stored
struct Descales {
  Descale q{}, k{}, v{};
};

// The lists of Problem::blocks, int32, on the host for the CPU, on the device for a GPU. b and hq
// are 1 where it has one list for all; rows and columns count blocks of queries and of keys. Of
// each row the first `count` entries are looked at, which ascend. A bitmap has a bit a pair: key j
// of its block is bit j % 32 of word j / 32 of the query's row. The CPU throws InvalidArgument
// where an entry is no block or no bitmap; kernels hide such blocks.
struct BlockLists {
  const std::int32_t* kv_counts = nullptr;   // [b, hq, rows]
  const std::int32_t* kv_indices = nullptr;  // [b, hq, rows, columns]: blocks of keys
  // Likewise: the number of the block's bitmap, or kFullBlock. Null: all are whole.
  const std::int32_t* kv_bitmaps = nullptr;
  // The same blocks by their keys, of a backward: [b, hq, columns] and [b, hq, columns, rows].
  const std::int32_t* q_counts = nullptr;
  const std::int32_t* q_indices = nullptr;
  const std::int32_t* q_bitmaps = nullptr;
  const std::uint32_t* bits = nullptr;  // [bitmaps, block_q, (block_k + 31) / 32]
  std::int64_t bitmaps = 0;
};

// Host pointers for the CPU, device pointers for a GPU backend; layouts as in Problem.
// workspace: plan.workspace_bytes, 64-byte aligned, or null to have it allocated for this call.
struct ForwardArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;  // may be null
  void* workspace = nullptr;
  // plan.probabilities_bytes, 64-byte aligned, kept by the caller from forward() to backward();
  // not looked at where the plan stores none.
  void* probabilities = nullptr;
  Sequences sequences{};
  Logits logits{};
  BlockLists blocks{};
  Descales descales{};
};

// o and lse are those that forward() returned. dq, dk, dv have the element type and strides of q,
// k, v.
struct BackwardArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;
  const float* lse = nullptr;
  const void* d_o = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  void* workspace = nullptr;
  const void* probabilities = nullptr;  // those that forward() left
  Sequences sequences{};
  Logits logits{};
  float* d_sinks = nullptr;  // [hq], where the problem has sinks
  float* d_bias = nullptr;   // of the bias's sizes, fp32; null: its gradient is not wanted
  Strides d_bias_strides{};  // in elements; all 0: dense. Keys are contiguous.
  BlockLists blocks{};
};

// The stream that work is ordered on, and how much of the card it may take. CPU backends ignore the
// stream: their calls return when done.
struct Queue {
  void* stream = nullptr;
  // Multiprocessors, from 1 to what the plan says; 0: all. Read at the launch, so that it may
  // change from call to call; outputs are the same to the last bit. A graph keeps that of its
  // recording. Kernels of pairs of thread blocks take two at least, and an even number.
  int sm_budget = 0;
};

struct BackendInfo {
  std::string name;
  std::string description;
  Verdict available;
};

// Every backend this build knows, in order of preference, with the reason where one is absent.
DFA_API std::vector<BackendInfo> backends();

// Throws InvalidArgument on a bad problem or configuration, one of the other pass among them,
// Unsupported with the reason where no backend can run it.
DFA_API Plan plan(const Problem& problem, const PlanOptions& options = {});

// What compiling the plan's kernels warned of, registers that spill, say: a line each, of kernels
// that have run. Planning compiles nothing, so a plan that has not run yet has none.
DFA_API std::vector<std::string> warnings(const Plan& plan);

// Was it planned for what the calling thread may use now, the whole device or the part (a green
// context) that is current? A plan for another part runs, and right, but not at its best.
DFA_API bool fits_context(const Plan& plan);

// o = softmax(logits + mask) v and its log-sum-exp. Rows that see no key get o = 0, lse = -inf, or
// the sink. Throws InvalidArgument on null or misaligned pointers and on a budget of
// multiprocessors that is out of range, Unsupported where the plan takes none, OutOfMemory when the
// workspace cannot be had.
DFA_API void forward(const Plan& plan, const ForwardArgs& args, Queue queue = {});

// dq, dk, dv from q, k, v, o, lse and do. The probabilities are computed anew, unless the plan
// stores them.
DFA_API void backward(const Plan& plan, const BackwardArgs& args, Queue queue = {});

}  // namespace dfa
