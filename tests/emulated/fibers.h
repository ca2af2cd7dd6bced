#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// A thread block on the processor: a fiber for every thread, one running at a time. Thread blocks
// run one after another, in the order of their indices, so that none may wait for a later one;
// those of a cluster, of two at most, run together.
namespace dfa {

extern char smem[];  // of the blocks that run, kBlocksApart; filled with 0xff before each

}  // namespace dfa

namespace dfa::emulated {

inline constexpr unsigned kSharedBytes = 256 << 10;  // of a block
inline constexpr unsigned kMostTogether = 2;
// From one block of a cluster to the next: an address tells by its high bits whose it is, and a
// descriptor of a product has no place for them.
inline constexpr unsigned kBlocksApart = 1 << 24;
inline constexpr unsigned kSharedEnd = (kMostTogether - 1) * kBlocksApart + kSharedBytes;

// When what runs behind the threads is done: where it is issued, or at the last moment that its
// waits allow. Copies that are late come when every thread would otherwise stand still; products
// that are late read and write when their warp waits for them.
struct Timing {
  bool late_copies = false;
  bool late_products = false;
  int late_warp = -1;          // of each block: goes on when nothing else does
  bool all_lanes_late = true;  // of that warp; else its first one is not
};
inline constexpr Timing kEager{};
inline constexpr Timing kLate{.late_copies = true, .late_products = true};
// A stage that was given back too early is filled again while products still read it.
inline constexpr Timing kCrossed{.late_copies = false, .late_products = true};

extern Timing timing;

// For as long as it lives.
struct WithTiming {
  explicit WithTiming(Timing t) : before(timing) { timing = t; }
  ~WithTiming() { timing = before; }
  Timing before;
};

// Waits and fences that do nothing, to see that tests see it.
struct Deaf {
  bool phases = false, stores = false, fences = false, named_barriers = false;
  bool clusters = false;  // their blocks' meetings
};

extern Deaf deaf;

struct Index {
  unsigned x;
};

// Threads that meet: a warp's, or at a named barrier.
struct Barrier {
  unsigned arrived = 0, expected = 0, round = 0;
};

struct Warp {
  Barrier barrier;
  alignas(16) char said[32][32];
};

// What a fiber stands still for.
struct Wait {
  enum class For { nothing, another_look, barrier, phase };
  For what = For::nothing;
  const Barrier* barrier = nullptr;
  unsigned round = 0, address = 0, parity = 0;
};

// What a thread copies to shared memory behind its back (ptx::copy_4, ptx::copy_up_to), of its nth
// group. The rest of its place becomes 0.
struct LateCopy {
  unsigned target;
  const void* source;
  unsigned group;
  std::size_t bytes, place;
};

struct Fiber {
  static constexpr std::size_t kStackBytes = 256 << 10;
  ucontext_t context;
  std::jmp_buf at;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  unsigned index = 0;  // among all that run together
  Index thread{}, block{};
  bool started = false, done = false;
  Wait wait;
  std::vector<unsigned> unfenced;  // words that it has written, not yet for copies and products
  std::vector<LateCopy> late_copies;
  unsigned copy_groups = 0;
};

extern Fiber* running;
extern Index block_size, grid_size;
extern unsigned cluster_size;
extern std::vector<Warp> warps;
extern Barrier barriers[kMostTogether][16], cluster_barrier;

// Which block of its cluster a thread is of, and how many of a block's have not ended.
inline unsigned rank() { return running->block.x % cluster_size; }
unsigned threads_left(unsigned rank);

// The named barriers of the running thread's block.
inline Barrier& named_barrier(unsigned i) { return barriers[rank()][i]; }

// Runs `work` as each thread of each block, in clusters of so many. Throws std::runtime_error where
// threads wait for what never comes, saying for what, and where an instruction was used as none may
// be.
void launch(unsigned blocks, unsigned threads, const std::function<void()>& work,
            unsigned cluster = 1);

// Ends the launch with this message, as an exception of launch().
[[noreturn]] void fail(const std::string& message);

void stand_still(const Wait& wait);  // until it is over
void yield();                        // another look later: at memory that others write

// At a barrier of that many threads, with and without stopping there.
void wait(Barrier& barrier, unsigned threads);
void arrive(Barrier& barrier, unsigned threads);

inline unsigned lane() { return running->thread.x % 32; }
inline Warp& warp() { return warps[running->index / 32]; }

// What every lane says, heard by `use` through said(lane).
template <typename T, typename Use>
void exchange(const T& value, const Use& use) {
  static_assert(sizeof(T) <= sizeof(Warp::said[0]));
  std::memcpy(warp().said[lane()], &value, sizeof(T));
  wait(warp().barrier, 32);
  use([](unsigned from) {
    T heard;
    std::memcpy(&heard, warp().said[from], sizeof(T));
    return heard;
  });
  wait(warp().barrier, 32);
}

}  // namespace dfa::emulated
