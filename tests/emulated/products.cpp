#include <cmath>
#include <cstdint>
#include <deque>

#include "base/float16.h"
#include "base/wider_vectors.h"
#include "emulated/async.h"

// wgmma. Each warp's part of a product stands in a queue of the warp's own: nothing but the
// kernel's barriers keeps the warps of a group together.
namespace dfa::emulated {

Counted counted;
int e4m3_sum_bits = 0;

namespace {

constexpr int kDepthBytes = 32, kMostDepth = 32, kRows = 16, kMostColumns = 256;

int depth_of(DType element) { return kDepthBytes / bytes_of(element); }

struct Queued {
  bool ends_group = false;
  Product product{};
  float (*sums[32])[4] = {};
  const unsigned* left[32] = {};
  int lanes = 0;
  bool done = false;
};

struct Queue {
  std::deque<Queued> queued;
  unsigned first = 0;        // how many have left it
  unsigned issued[32] = {};  // by each lane
  bool fenced[32] = {};      // since the lane last waited
  std::uint64_t made = 0;    // a digest of all products
};

std::vector<Queue> queues;

float value_of(DType element, unsigned bits) {
  if (element == DType::e4m3) return to_float(e4m3{static_cast<std::uint8_t>(bits)});
  if (element == DType::bf16) return to_float(bf16{static_cast<std::uint16_t>(bits)});
  static const std::vector<float> all = [] {
    std::vector<float> values(1 << 16);
    for (unsigned i = 0; i < values.size(); ++i) {
      values[i] = to_float(fp16{static_cast<std::uint16_t>(i)});
    }
    return values;
  }();
  return all[bits & 0xffff];
}

// An operand in shared memory: 32 bytes in k by `count` rows or columns from `first` on.
class Operand {
 public:
  Operand(unsigned long long descriptor, DType element)
      : start_((static_cast<unsigned>(descriptor & 0x3fff) << 4) + rank() * kBlocksApart),
        leading_(static_cast<unsigned>(descriptor >> 16 & 0x3fff) << 4),
        stride_(static_cast<unsigned>(descriptor >> 32 & 0x3fff) << 4),
        element_(element) {
    constexpr unsigned long long kNoField = 0xc000c000c000;
    if ((descriptor & kNoField) != 0) fail("a descriptor with bits that belong to no field");
    constexpr unsigned kWidths[4] = {0, 128, 64, 32};
    width_ = kWidths[descriptor >> 62];
    if (width_ == 0 || (descriptor >> 49 & 7) != 0) {
      fail("a descriptor without swizzle, or with a base offset");
    }
  }

  // to[k * kPitch + i]; k lies along the rows of 128 (64, 32) bytes, or across them.
  template <int kPitch>
  void read(float* to, int first, int count, bool transposed) const {
    if (bytes_of(element_) == 1) return read_bytes<kPitch>(to, first, count, transposed);
    constexpr int kDepth = kDepthBytes / 2;
    const int along = static_cast<int>(width_) / 2;  // elements of a row
    for (int outer = 0; outer < (transposed ? kDepth : count); ++outer) {
      for (int inner = 0; inner < (transposed ? count : kDepth); inner += 8) {
        const int i = first + (transposed ? inner : outer), k = transposed ? outer : inner;
        const unsigned address =
            transposed
                ? start_ + unsigned(i / along) * leading_ + unsigned(k / 8) * stride_ +
                      unsigned(k % 8) * width_ + unsigned(i % along) * 2
                : start_ + unsigned(i / 8) * stride_ + unsigned(i % 8) * width_ + unsigned(k) * 2;
        std::uint16_t eight[8];
        std::memcpy(eight, seen_by_async(swizzled(address, width_), 16), 16);
        for (int e = 0; e < 8; ++e) {
          const int at_i = (transposed ? inner + e : outer), at_k = transposed ? k : k + e;
          to[at_k * kPitch + at_i] = value_of(element_, eight[e]);
        }
      }
    }
  }

 private:
  // Of 8 bits, which lie along k alone.
  template <int kPitch>
  void read_bytes(float* to, int first, int count, bool transposed) const {
    if (transposed) fail("a product of 8-bit elements that do not lie along k");
    for (int i = first; i < first + count; ++i) {
      for (int k = 0; k < kDepthBytes; k += 16) {
        const unsigned address =
            start_ + unsigned(i / 8) * stride_ + unsigned(i % 8) * width_ + unsigned(k);
        unsigned char chunk[16];
        std::memcpy(chunk, seen_by_async(swizzled(address, width_), 16), 16);
        for (int e = 0; e < 16; ++e)
          to[(k + e) * kPitch + i - first] = value_of(element_, chunk[e]);
      }
    }
  }

  unsigned start_, leading_, stride_, width_;
  DType element_;
};

void read_registers(float* to, const Queued& queued) {
  const DType element = queued.product.element;
  const int each = 4 / bytes_of(element);  // of a register
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      for (int i = 0; i < each; ++i) {
        const int row = lane / 4 + r % 2 * 8, k = lane % 4 * each + r / 2 * 4 * each + i;
        to[k * kRows + row] = value_of(element, queued.left[lane][r] >> (32 / each * i));
      }
    }
  }
}

bool left_in_registers(const Product& p) {
  return p.operands == Product::Operands::registers ||
         p.operands == Product::Operands::registers_rows;
}
bool right_by_rows(const Product& p) {
  return p.operands == Product::Operands::shared || p.operands == Product::Operands::registers_rows;
}

// sums[n] = sum over k of left[k * kRows] · right[k * kMostColumns + n], the first k first.
DFA_WIDER_VECTORS void multiply_row(float* sums, const float* left, const float* right, int depth,
                                    int columns) {
  using Eight [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;
  for (int n = 0; n < columns; n += 8) {
    Eight sum{};
    for (int k = 0; k < depth; ++k) {
      sum += left[k * kRows] * *reinterpret_cast<const Eight*>(right + k * kMostColumns + n);
    }
    *reinterpret_cast<Eight*>(sums + n) = sum;
  }
}

// Of one column: products and what they are added to, cut alike.
float cut_sum(const float* left, const float* right, int depth, float before) {
  float largest = std::fabs(before);
  for (int k = 0; k < depth; ++k) {
    largest = std::fmax(largest, std::fabs(left[k * kRows] * right[k * kMostColumns]));
  }
  if (!(largest > 0) || !std::isfinite(largest)) return before;
  const double step = std::ldexp(1.0, std::ilogb(largest) - e4m3_sum_bits + 1);
  double sum = std::trunc(before / step);
  for (int k = 0; k < depth; ++k) {
    sum += std::trunc(double{left[k * kRows]} * right[k * kMostColumns] / step);
  }
  return static_cast<float>(sum * step);
}

void execute(Queued& queued, int warp_of_group) {
  const Product& p = queued.product;
  const int columns = 8 * p.fragments;
  const int depth = depth_of(p.element);
  float left[kMostDepth * kRows];
  static float right[kMostDepth * kMostColumns];
  const bool transposed = p.operands == Product::Operands::transposed;
  if (left_in_registers(p)) {
    read_registers(left, queued);
  } else {
    Operand(p.left, p.element).read<kRows>(left, warp_of_group * kRows, kRows, transposed);
  }
  Operand(p.right, p.element).read<kMostColumns>(right, 0, columns, !right_by_rows(p));
  for (int row = 0; row < kRows; ++row) {
    float sums[kMostColumns];
    multiply_row(sums, left + row, right, depth, columns);
    const bool cuts = e4m3_sum_bits > 0 && p.element == DType::e4m3;
    for (int n = 0; n < columns; ++n) {
      float& sum = queued.sums[row % 8 * 4 + n % 8 / 2][n / 8][row / 8 * 2 + n % 2];
      sum = cuts ? cut_sum(left + row, right + n, depth, p.keep ? sum : 0)
                 : (p.keep ? sum + sums[n] : sums[n]);
    }
  }
  queued.done = true;
  ++(left_in_registers(p) ? counted.registers : counted.shared);
}

Queue& own() { return queues[running->index / 32]; }
int warp_of_group() { return static_cast<int>(running->thread.x / 32 % 4); }

// This lane's next place.
Queued& next() {
  Queue& queue = own();
  const unsigned at = queue.issued[lane()]++ - queue.first;
  if (at == queue.queued.size()) queue.queued.emplace_back();
  Queued& queued = queue.queued[at];
  ++queued.lanes;
  return queued;
}

}  // namespace

void start_products(unsigned count) { queues.assign(count, {}); }

void end_products() {
  for (std::size_t i = 0; i < queues.size(); ++i) {
    if (!queues[i].queued.empty()) fail("ends with products under way");
    if (queues[i].made == queues[i / 4 * 4].made) continue;
    fail("warps " + std::to_string(i / 4 * 4) + " and " + std::to_string(i) +
         " of a group made different products");
  }
}

void multiply(const Product& product, float (*sums)[4], const unsigned* left) {
  if (!own().fenced[lane()]) {
    fail("a product without fence_products since the last wait_products");
  }
  Queued& queued = next();
  queued.product = product;
  queued.sums[lane()] = sums;
  queued.left[lane()] = left;
  if (queued.lanes == 1) {
    std::uint64_t& made = own().made;
    made = (made ^ product.right) * 0x9e3779b97f4a7c15u + static_cast<unsigned>(product.fragments);
  }
  if (queued.lanes == 32 && !timing.late_products) execute(queued, warp_of_group());
}

void fence_products() { own().fenced[lane()] = true; }

void commit_products() { next().ends_group = true; }

void wait_products(int pending) {
  Queue& queue = own();
  queue.fenced[lane()] = false;
  wait(warp().barrier, 32);
  int groups = 0;
  for (const Queued& queued : queue.queued) groups += queued.ends_group && queued.lanes == 32;
  while (groups > pending) {
    Queued& queued = queue.queued.front();
    if (queued.lanes != 32) fail("lanes of a warp differ in their products");
    if (queued.ends_group) {
      --groups;
    } else if (!queued.done) {
      execute(queued, warp_of_group());
    }
    queue.queued.pop_front();
    ++queue.first;
  }
}

}  // namespace dfa::emulated
