#include "emulated/fibers.h"

#include <exception>
#include <stdexcept>

#include "emulated/async.h"

namespace dfa {

alignas(1024) char smem[emulated::kSharedEnd];

}  // namespace dfa

namespace dfa::emulated {

Timing timing;
Deaf deaf;
Fiber* running = nullptr;
Index block_size, grid_size;
unsigned cluster_size = 1;
std::vector<Warp> warps;
Barrier barriers[kMostTogether][16], cluster_barrier;

namespace {

constexpr int kMostLooks = 1000;  // of every fiber in turn, with nothing else done

std::jmp_buf scheduler;
std::vector<std::unique_ptr<Fiber>> fibers;
unsigned fiber_count = 0, first_block = 0;
unsigned threads_not_ended[kMostTogether];  // threads of each block that have not ended
std::function<void()> kernel;
std::string failure;
bool inside = false;  // a fiber runs

// swapcontext would cost two system calls a switch, twenty times as much.
[[gnu::noinline]] void leave() {
  if (_setjmp(running->at) == 0) _longjmp(scheduler, 1);
}

void run_fiber() {
  kernel();
  running->done = true;
  --threads_not_ended[rank()];
  for (;;) leave();
}

[[gnu::noinline]] void resume(Fiber& fiber) {
  running = &fiber;
  fiber.wait = {};
  inside = true;
  if (_setjmp(scheduler) != 0) {
    inside = false;
    return;
  }
  if (fiber.started) _longjmp(fiber.at, 1);
  fiber.started = true;
  setcontext(&fiber.context);
}

void start(Fiber& fiber, unsigned index) {
  fiber.index = index;
  fiber.thread = {index % block_size.x};
  fiber.block = {first_block + index / block_size.x};
  fiber.started = fiber.done = false;
  fiber.wait = {};
  fiber.unfenced.clear();
  fiber.late_copies.clear();
  fiber.copy_groups = 0;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = Fiber::kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, run_fiber, 0);
}

bool is_over(const Wait& wait) {
  switch (wait.what) {
    case Wait::For::nothing: return true;
    case Wait::For::another_look: return true;
    case Wait::For::barrier: return wait.barrier->round != wait.round;
    case Wait::For::phase: return has_ended(wait.address, wait.parity);
  }
  return true;
}

std::string describe(const Wait& wait) {
  switch (wait.what) {
    case Wait::For::nothing: return "nothing";
    case Wait::For::another_look: return "a change in global memory";
    case Wait::For::barrier: {
      const std::string met = std::to_string(wait.barrier->arrived) + " of " +
                              std::to_string(wait.barrier->expected) + " threads";
      if (wait.barrier == &cluster_barrier) return "its cluster, " + met;
      const Barrier* const named = barriers[0];
      if (wait.barrier < named || wait.barrier >= named + 16 * kMostTogether) {
        return "its warp, " + met;
      }
      return "named barrier " + std::to_string((wait.barrier - named) % 16) + ", " + met;
    }
    case Wait::For::phase: return describe_phase(wait.address, wait.parity);
  }
  return "?";
}

// One line for neighbours that wait for the same.
std::string standstill() {
  std::string text = "stands still:";
  for (unsigned first = 0; first < fiber_count;) {
    const std::string what = fibers[first]->done ? "" : describe(fibers[first]->wait);
    unsigned last = first;
    while (last + 1 < fiber_count &&
           what == (fibers[last + 1]->done ? "" : describe(fibers[last + 1]->wait))) {
      ++last;
    }
    if (!what.empty()) {
      text += "\n  threads " + std::to_string(first) + " to " + std::to_string(last) +
              " wait for " + what;
    }
    first = last + 1;
  }
  return text;
}

void stop_at_failure() {
  if (!failure.empty()) throw std::runtime_error(failure);
}

enum class Turn { all_done, went_on, looked, stood_still };

// A warp, or its first lanes, goes on until all of them stand still, which lets warps run far ahead
// of each other.
Turn run_warp(unsigned first, unsigned lanes) {
  bool done = true, looked = false, any = false;
  for (bool more = true; more;) {
    more = false;
    done = true;
    for (unsigned i = first; i < first + lanes && i < fiber_count; ++i) {
      Fiber& fiber = *fibers[i];
      if (fiber.done) continue;
      if (is_over(fiber.wait)) {
        const bool looks = fiber.wait.what == Wait::For::another_look;
        if (looks && looked) {
          done = false;
          continue;  // once a turn
        }
        resume(fiber);
        stop_at_failure();
        const bool still = looks && fiber.wait.what == Wait::For::another_look;
        looked |= still;
        more |= !still;
        any |= !still;
      }
      done &= fiber.done;
    }
  }
  if (done) return any ? Turn::went_on : Turn::all_done;
  return any ? Turn::went_on : (looked ? Turn::looked : Turn::stood_still);
}

void run_block() {
  for (int looks = 0;;) {
    bool done = true, went_on = false, looked = false;
    const auto run_warps = [&](bool late) {
      for (unsigned first = 0; first < fiber_count; first += 32) {
        const bool is_late = static_cast<int>(first % block_size.x / 32) == timing.late_warp;
        const bool first_only = is_late && !late && !timing.all_lanes_late;
        if (is_late != late && !first_only) continue;
        const Turn turn = run_warp(first, first_only ? 1 : 32);
        done &= turn == Turn::all_done;
        went_on |= turn == Turn::went_on;
        looked |= turn == Turn::looked;
      }
    };
    run_warps(false);
    if (went_on || deliver_copy([](const auto& visit) {
          for (unsigned i = 0; i < fiber_count; ++i) visit(*fibers[i]);
        })) {
      looks = 0;
      continue;
    }
    run_warps(true);
    if (done) return;
    if (went_on) {
      looks = 0;
      continue;
    }
    if (!looked || ++looks == kMostLooks) fail(standstill());
  }
}

void check_barriers() {
  for (const auto& of_block : barriers) {
    for (int i = 0; i < 16; ++i) {
      if (of_block[i].arrived == 0) continue;
      fail("ends with " + std::to_string(of_block[i].arrived) + " threads at named barrier " +
           std::to_string(i));
    }
  }
}

}  // namespace

void yield() { stand_still({.what = Wait::For::another_look}); }

void stand_still(const Wait& wait) {
  running->wait = wait;
  leave();
}

void fail(const std::string& message) {
  const std::string name = "block " + std::to_string(inside ? running->block.x : first_block);
  if (!inside) throw std::runtime_error(name + ": " + message);
  failure = name + ", thread " + std::to_string(running->thread.x) + ": " + message;
  for (;;) leave();
}

void arrive(Barrier& barrier, unsigned threads) {
  if (barrier.arrived != 0 && barrier.expected != threads) {
    fail("comes to a barrier of " + std::to_string(threads) + " threads that others took for " +
         std::to_string(barrier.expected));
  }
  barrier.expected = threads;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.round;
  }
}

void wait(Barrier& barrier, unsigned threads) {
  const unsigned round = barrier.round;
  arrive(barrier, threads);
  while (barrier.round == round) {
    stand_still({.what = Wait::For::barrier, .barrier = &barrier, .round = round});
  }
}

unsigned threads_left(unsigned rank) { return threads_not_ended[rank]; }

void launch(unsigned blocks, unsigned threads, const std::function<void()>& work,
            unsigned cluster) {
  kernel = work;
  failure.clear();
  block_size = {threads};
  grid_size = {blocks};
  cluster_size = cluster;
  fiber_count = cluster * threads;
  if (cluster > kMostTogether || blocks % cluster != 0) {
    throw std::runtime_error(std::to_string(blocks) + " blocks in clusters of " +
                             std::to_string(cluster));
  }
  while (fibers.size() < fiber_count) fibers.push_back(std::make_unique<Fiber>());
  // Stacks with frames that were never left are of no use to another launch.
  const struct Clear {
    ~Clear() {
      if (std::uncaught_exceptions() > 0) fibers.clear();
    }
  } clear_where_it_failed;
  for (first_block = 0; first_block < blocks; first_block += cluster) {
    warps.assign(fiber_count / 32, {});
    for (auto& of_block : barriers) {
      for (Barrier& barrier : of_block) barrier = {};
    }
    cluster_barrier = {};
    for (unsigned block = 0; block < cluster; ++block) {
      std::memset(smem + block * kBlocksApart, 0xff, kSharedBytes);
    }
    start_async(fiber_count);
    for (unsigned& threads_of_block : threads_not_ended) threads_of_block = threads;
    for (unsigned i = 0; i < fiber_count; ++i) start(*fibers[i], i);
    run_block();
    check_barriers();
    end_async();
  }
}

}  // namespace dfa::emulated
