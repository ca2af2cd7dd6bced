#pragma once

#include "dfa/dtype.h"
#include "emulated/async.h"
#include "kernels/device.h"

namespace dfa::ptx {

inline void fence_products() { emulated::fence_products(); }
inline void commit_products() { emulated::commit_products(); }
template <int kPending>
void wait_products() {
  emulated::wait_products(kPending);
}

template <typename Registers>
void pin(Registers&) {}

template <DType kElement, int kKeep, int kFragments>
void multiply_shared(float (&d)[kFragments][4], unsigned long long a, unsigned long long b) {
  emulated::multiply({emulated::Product::Operands::shared, kElement, kKeep != 0, kFragments, a, b},
                     d, nullptr);
}

template <DType kElement, int kFragments>
void multiply_shared_columns(float (&d)[kFragments][4], unsigned long long a,
                             unsigned long long b) {
  emulated::multiply(
      {emulated::Product::Operands::shared_columns, kElement, true, kFragments, a, b}, d, nullptr);
}

template <DType kElement, int kKeep, int kFragments>
void multiply_transposed(float (&d)[kFragments][4], unsigned long long a, unsigned long long b) {
  emulated::multiply(
      {emulated::Product::Operands::transposed, kElement, kKeep != 0, kFragments, a, b}, d,
      nullptr);
}

template <DType kElement, int kKeep, int kFragments>
void multiply_registers_rows(float (&d)[kFragments][4], const unsigned (&a)[4],
                             unsigned long long b) {
  emulated::multiply(
      {emulated::Product::Operands::registers_rows, kElement, kKeep != 0, kFragments, 0, b}, d, a);
}

template <DType kElement, int kFragments>
void multiply_registers(float (&d)[kFragments][4], const unsigned (&a)[4], unsigned long long b) {
  emulated::multiply({emulated::Product::Operands::registers, kElement, true, kFragments, 0, b}, d,
                     a);
}

}  // namespace dfa::ptx
