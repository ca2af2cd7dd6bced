#include "emulated/async.h"

#include <deque>
#include <memory>

#include "emulated/boxes.h"

namespace dfa::emulated {
namespace {

// As it lies in shared memory.
struct Phase {
  std::uint16_t expected, pending;
  std::int32_t bytes_and_number;  // bytes still to come, and the phase's number in the low bits

  static constexpr int kNumbers = 256;
  int bytes() const { return bytes_and_number >> 8; }
  int number() const { return bytes_and_number & (kNumbers - 1); }
};
static_assert(sizeof(Phase) == 8);
constexpr std::uint16_t kNever = 0xffff;  // shared memory as a block finds it

Phase phase_at(unsigned address) {
  Phase phase;
  std::memcpy(&phase, smem + address, sizeof phase);
  return phase;
}

void set_phase(unsigned address, Phase phase) {
  if (phase.pending == 0 && phase.bytes() == 0) {
    phase.pending = phase.expected;
    phase.bytes_and_number = (phase.number() + 1) % Phase::kNumbers;
  }
  std::memcpy(smem + address, &phase, sizeof phase);
}

bool is_shared(unsigned address) {
  return address / kBlocksApart < cluster_size && address % kBlocksApart < kSharedBytes;
}

std::string at(unsigned address) { return "the barrier at " + std::to_string(address); }

Phase initialised(unsigned address) {
  if (address % 8 != 0 || !is_shared(address)) fail(at(address) + " is none");
  if (threads_left(address / kBlocksApart) == 0)
    fail(at(address) + " is of a block that has ended");
  const Phase phase = phase_at(address);
  if (phase.expected == kNever) fail(at(address) + " was not initialised");
  return phase;
}

struct Load {
  unsigned barrier, bytes;
  std::function<void()> move;
};

struct Store {
  BoxStore box;
  bool committed = false;
};

std::deque<Load> loads;                  // under way
std::vector<std::vector<Store>> stores;  // of each thread
alignas(1024) char async_smem[kSharedEnd];

void finish(const Load& load) {
  load.move();
  Phase phase = phase_at(load.barrier);
  phase.bytes_and_number -= static_cast<int>(load.bytes) * Phase::kNumbers;
  set_phase(load.barrier, phase);
}

void start_load(Load load) {
  initialised(load.barrier);
  if (timing.late_copies) {
    loads.push_back(std::move(load));
  } else {
    finish(load);
  }
}

bool weak() { return timing.late_copies || timing.late_products; }

}  // namespace

void start_async(unsigned threads) {
  loads.clear();
  stores.assign(threads, {});
  for (unsigned block = 0; block < cluster_size; ++block) {
    std::memset(async_smem + block * kBlocksApart, 0xff, kSharedBytes);
  }
  start_products(threads / 32);
}

void end_async() {
  if (!loads.empty()) {
    fail("ends with " + std::to_string(loads.size()) + " copies under way, of " +
         at(loads[0].barrier));
  }
  for (auto& of_thread : stores) {
    // The last first: nothing has kept them in order.
    for (auto store = of_thread.rbegin(); store != of_thread.rend(); ++store) {
      if (!store->box.is_read()) fail("ends before its stores have read shared memory");
      store->box.write();
    }
  }
  end_products();
}

void init_barrier(unsigned address, unsigned arrivals) {
  if (address % 8 != 0 || !is_shared(address)) fail(at(address) + " is none");
  const auto count = static_cast<std::uint16_t>(arrivals);
  const Phase phase{.expected = count, .pending = count, .bytes_and_number = 0};
  std::memcpy(smem + address, &phase, sizeof phase);
}

void arrive(unsigned address, unsigned bytes) {
  Phase phase = initialised(address);
  if (phase.pending == 0) fail("one arrival too many at " + at(address));
  --phase.pending;
  phase.bytes_and_number += static_cast<int>(bytes) * Phase::kNumbers;
  set_phase(address, phase);
}

bool has_ended(unsigned address, unsigned parity) {
  return (phase_at(address).number() & 1) != static_cast<int>(parity & 1);
}

void wait_phase(unsigned address, unsigned parity) {
  initialised(address);
  if (deaf.phases) return;
  while (!has_ended(address, parity)) {
    stand_still({.what = Wait::For::phase, .address = address, .parity = parity});
  }
}

std::string describe_phase(unsigned address, unsigned parity) {
  const Phase phase = phase_at(address);
  return at(address) + ", parity " + std::to_string(parity) + ": " + std::to_string(phase.pending) +
         " of " + std::to_string(phase.expected) + " arrivals and " +
         std::to_string(phase.bytes()) + " bytes to come";
}

void load_box(unsigned target, const TensorMap& map, unsigned barrier, Place place) {
  if (target % 128 != 0) fail("a box to " + std::to_string(target) + ", no multiple of 128");
  start_load({barrier, box_bytes(map), [=] { move_box_in(target, map, place); }});
}

void load_bytes(unsigned target, const void* source, unsigned bytes, unsigned barrier) {
  if (target % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(source) % 16 != 0) {
    fail(std::to_string(bytes) + " bytes to " + std::to_string(target) +
         ": they and both places must be multiples of 16");
  }
  start_load({barrier, bytes, [=] { write_by_copy(target, source, bytes); }});
}

void send_bytes(unsigned target, unsigned source, unsigned bytes, unsigned barrier) {
  if (target % 16 != 0 || source % 16 != 0 || bytes % 16 != 0) {
    fail(std::to_string(bytes) + " bytes from " + std::to_string(source) + " to " +
         std::to_string(target) + ": all must be multiples of 16");
  }
  start_load({barrier, bytes, [=] { write_by_copy(target, seen_by_async(source, bytes), bytes); }});
}

namespace {

void start_store(Store store) {
  if (!timing.late_copies) {
    store.box.read();
    store.box.write();
  }
  stores[running->index].push_back(std::move(store));
}

}  // namespace

void store_box(const TensorMap& map, unsigned source, Place place) {
  if (place.column < 0 || place.row < 0) fail("a store of a box that starts before the tensor");
  start_store({BoxStore(map, source, place)});
}

void commit_stores() {
  for (Store& store : stores[running->index]) store.committed = true;
}

void wait_stores(bool written) {
  if (deaf.stores) return;
  std::vector<Store>& own = stores[running->index];
  for (Store& store : own) {
    if (!store.committed) continue;
    store.box.read();
    if (written) store.box.write();
  }
  std::erase_if(own, [](const Store& s) { return s.committed && s.box.is_written(); });
}

bool deliver_copy(const EachFiber& each_fiber) {
  if (loads.empty()) return false;
  auto next = loads.begin();
  each_fiber([&](const Fiber& fiber) {
    if (fiber.done || fiber.wait.what != Wait::For::phase) return;
    for (auto load = loads.begin(); load != loads.end(); ++load) {
      if (load->barrier == fiber.wait.address) next = load;  // the last: the order is not given
    }
  });
  const Load load = std::move(*next);
  loads.erase(next);
  finish(load);
  return true;
}

void store_word(unsigned address, unsigned word) {
  std::memcpy(smem + address, &word, sizeof word);
  if (weak()) {
    running->unfenced.push_back(address);
  } else {
    std::memcpy(async_smem + address, &word, sizeof word);
  }
}

void fence_async() {
  if (deaf.fences) return;
  for (const unsigned address : running->unfenced) {
    std::memcpy(async_smem + address, smem + address, 4);
  }
  running->unfenced.clear();
}

namespace {

void check_range(unsigned address, unsigned bytes) {
  if (is_shared(address) && is_shared(address + bytes - 1)) return;
  fail("shared memory ends before " + std::to_string(address + bytes));
}

}  // namespace

const char* seen_by_async(unsigned address, unsigned bytes) {
  check_range(address, bytes);
  return async_smem + address;
}

void write_by_copy(unsigned address, const void* from, unsigned bytes) {
  check_range(address, bytes);
  std::memcpy(smem + address, from, bytes);
  std::memcpy(async_smem + address, from, bytes);
}

}  // namespace dfa::emulated
