#pragma once

#include <functional>
#include <string>

#include "dfa/dtype.h"
#include "emulated/fibers.h"
#include "kernels/tensor_map.h"

// What runs behind the threads of a block: copies of the copy engine, products of the tensor
// cores, and the barriers in shared memory (mbarrier) that they and threads arrive at.
//
// Copies and products see shared memory of their own: what copies have put there, and what threads
// have put there by ptx::store_matrices or ptx::store_shared_4 and then fenced. Another plain store
// is never seen by them.
namespace dfa::emulated {

void start_async(unsigned threads);
void end_async();  // throws where the block has left something unfinished

// Barriers in shared memory.

void init_barrier(unsigned address, unsigned arrivals);
void arrive(unsigned address, unsigned bytes);  // and so many bytes are to come
void wait_phase(unsigned address, unsigned parity);
bool has_ended(unsigned address, unsigned parity);
std::string describe_phase(unsigned address, unsigned parity);

// Copies.

struct Place {
  int column, row, plane, batch;
  int fifth = 0;
};

void load_box(unsigned target, const TensorMap& map, unsigned barrier, Place place);
void load_bytes(unsigned target, const void* source, unsigned bytes, unsigned barrier);
void store_box(const TensorMap& map, unsigned source, Place place);
void commit_stores();
void wait_stores(bool written);  // else only read

// A copy that a fiber waits for, or any, when none can go on; false: there is none.
using EachFiber = std::function<void(const std::function<void(const Fiber&)>&)>;
bool deliver_copy(const EachFiber& each_fiber);

// A thread's word in shared memory, which copies and products see after its fence.
void store_word(unsigned address, unsigned word);
void fence_async();

// What copies and products see there.
const char* seen_by_async(unsigned address, unsigned bytes);
void write_by_copy(unsigned address, const void* from, unsigned bytes);

// The 128-byte swizzle, of an address; likewise of 64 and 32.
inline unsigned swizzled(unsigned address, unsigned width) {
  return address ^ ((address >> 7 & (width / 16 - 1)) << 4);
}

// From one place of shared memory to another.
void send_bytes(unsigned target, unsigned source, unsigned bytes, unsigned barrier);

// Products of a warpgroup, each warp its 16 rows.

struct Product {
  enum class Operands { shared, shared_columns, transposed, registers, registers_rows };
  Operands operands;
  DType element;
  bool keep;      // add to the sums
  int fragments;  // of 8 columns
  unsigned long long left, right;
};

void multiply(const Product& product, float (*sums)[4], const unsigned* left);
void fence_products();
void commit_products();
void wait_products(int pending);

// Bits of mantissa that a sum of products in e4m3 keeps, as a card's tensor cores do (14): what
// is added at once is cut at so many below the largest of it. 0: all of fp32.
extern int e4m3_sum_bits;

// Of warps, of either kind of left operand, since it was set to {}.
struct Counted {
  long long shared = 0, registers = 0;
};
extern Counted counted;

void start_products(unsigned count);
void end_products();

}  // namespace dfa::emulated
