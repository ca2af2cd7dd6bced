#pragma once

#include <vector>

#include "emulated/async.h"

// Boxes of a tensor as the copy engine moves them: rows of 128 bytes with the 128-byte swizzle.
// gpu::encode() of this program writes maps for them.
namespace dfa::emulated {

unsigned box_bytes(const TensorMap& map);

// What lies outside of the tensor becomes zero.
void move_box_in(unsigned target, const TensorMap& map, Place place);

// The way out, in two parts that may lie far apart; what lies behind the tensor's end is left out.
class BoxStore {
 public:
  BoxStore(const TensorMap& map, unsigned source, Place place)
      : map_(map), source_(source), place_(place) {}

  bool is_read() const { return !bytes_.empty(); }
  bool is_written() const { return written_; }
  void read();
  void write();

 private:
  TensorMap map_;
  unsigned source_;
  Place place_;
  std::vector<char> bytes_;
  bool written_ = false;
};

}  // namespace dfa::emulated
