#pragma once

#include "emulated/async.h"
#include "kernels/device.h"

// An address in shared memory is an offset into smem, where the block's own begins. Whole
// copies of 16 bytes are there at once, others may be late.
namespace dfa::ptx {

inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(static_cast<const char*>(pointer) - smem) +
         emulated::rank() * emulated::kBlocksApart;
}

inline void copy_16(unsigned target, const void* source, bool valid) {
  if (valid) {
    std::memcpy(smem + target, source, 16);
  } else {
    std::memset(smem + target, 0, 16);
  }
}

inline void land(const emulated::LateCopy& copy) {
  std::memset(smem + copy.target, 0, copy.place);
  std::memcpy(smem + copy.target, copy.source, copy.bytes);
}
inline void copy_late(const emulated::LateCopy& copy) {
  if (emulated::timing.late_copies) {
    emulated::running->late_copies.push_back(copy);
  } else {
    land(copy);
  }
}

template <int kPlace>
void copy_up_to(unsigned target, const void* source, int bytes) {
  copy_late(
      {target, source, emulated::running->copy_groups, static_cast<std::size_t>(bytes), kPlace});
}
inline void copy_4(unsigned target, const void* source) {
  copy_late({target, source, emulated::running->copy_groups, 4, 4});
}

inline float4 load_shared_4(unsigned address) {
  float4 v;
  std::memcpy(&v, smem + address, sizeof(v));
  return v;
}
inline float2 load_shared_2(unsigned address) {
  float2 v;
  std::memcpy(&v, smem + address, sizeof(v));
  return v;
}

inline float load_shared_1(unsigned address) {
  float v;
  std::memcpy(&v, smem + address, sizeof(v));
  return v;
}

inline void store_shared_4(unsigned address, const float (&x)[4]) {
  for (unsigned i = 0; i < 4; ++i) {
    unsigned word;
    std::memcpy(&word, &x[i], sizeof(word));
    emulated::store_word(address + 4 * i, word);
  }
}

inline uint4 load_words_4(unsigned address) {
  uint4 v;
  std::memcpy(&v, smem + address, sizeof(v));
  return v;
}

inline unsigned load_shared(unsigned address) {
  unsigned value;
  std::memcpy(&value, smem + address, sizeof(value));
  return value;
}
inline void store_shared(unsigned address, unsigned value) {
  std::memcpy(smem + address, &value, sizeof(value));
}
inline void or_shared(unsigned address, unsigned bits) {
  store_shared(address, load_shared(address) | bits);
}
inline unsigned add_shared(unsigned address, unsigned more) {
  const unsigned before = load_shared(address);
  store_shared(address, before + more);
  return before;
}

inline void commit_copies() { ++emulated::running->copy_groups; }
template <int kPending>
void wait_copies() {
  std::erase_if(emulated::running->late_copies, [](const emulated::LateCopy& copy) {
    if (copy.group + kPending >= emulated::running->copy_groups) return false;
    land(copy);
    return true;
  });
}

inline void sync_warps(unsigned barrier, unsigned threads) {
  if (!emulated::deaf.named_barriers) emulated::wait(emulated::named_barrier(barrier), threads);
}

}  // namespace dfa::ptx
