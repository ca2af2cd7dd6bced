#pragma once

#include "dfa/dtype.h"
#include "kernels/device.h"

// Products of a warpgroup (wgmma, sm_90a): 64 rows, 32 bytes in k, columns in multiples of 16. They
// run behind the threads: from the product to the wait, its sums and left operands are not to be
// touched. Warp w of the group holds rows 16 w + i, in the fragments of tile/product.cuh.
namespace dfa::ptx {

// Before the first product after sums or left operands were written by other instructions.
DFA_DEVICE void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Ends a group of products.
DFA_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most `kPending` groups are under way.
template <int kPending>
DFA_DEVICE void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The registers' values count as changed here: no use of them moves across.
template <int kFragments>
DFA_DEVICE void pin(float (&sum)[kFragments][4]) {
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
    asm volatile("" : "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])::"memory");
  }
}
template <int kSteps>
DFA_DEVICE void pin(unsigned (&left)[kSteps][4]) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    asm volatile(""
                 : "+r"(left[k][0]), "+r"(left[k][1]), "+r"(left[k][2]),
                   "+r"(left[k][3])::"memory");
  }
}

// Operand lists: registers of 16 columns at a time, in the text and as constraints.
// clang-format off
#define DFA_TEXT_1 "%0,%1,%2,%3,%4,%5,%6,%7"
#define DFA_TEXT_2 DFA_TEXT_1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define DFA_TEXT_3 DFA_TEXT_2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define DFA_TEXT_4 DFA_TEXT_3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define DFA_TEXT_5 DFA_TEXT_4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define DFA_TEXT_6 DFA_TEXT_5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define DFA_TEXT_7 DFA_TEXT_6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define DFA_TEXT_8 DFA_TEXT_7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define DFA_TEXT_9 DFA_TEXT_8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define DFA_TEXT_10 DFA_TEXT_9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define DFA_TEXT_11 DFA_TEXT_10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define DFA_TEXT_12 DFA_TEXT_11 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define DFA_TEXT_13 DFA_TEXT_12 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define DFA_TEXT_14 DFA_TEXT_13 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define DFA_TEXT_15 DFA_TEXT_14 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define DFA_TEXT_16 DFA_TEXT_15 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define DFA_FRAGMENT(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define DFA_SUMS_1 DFA_FRAGMENT(0), DFA_FRAGMENT(1)
#define DFA_SUMS_2 DFA_SUMS_1, DFA_FRAGMENT(2), DFA_FRAGMENT(3)
#define DFA_SUMS_3 DFA_SUMS_2, DFA_FRAGMENT(4), DFA_FRAGMENT(5)
#define DFA_SUMS_4 DFA_SUMS_3, DFA_FRAGMENT(6), DFA_FRAGMENT(7)
#define DFA_SUMS_5 DFA_SUMS_4, DFA_FRAGMENT(8), DFA_FRAGMENT(9)
#define DFA_SUMS_6 DFA_SUMS_5, DFA_FRAGMENT(10), DFA_FRAGMENT(11)
#define DFA_SUMS_7 DFA_SUMS_6, DFA_FRAGMENT(12), DFA_FRAGMENT(13)
#define DFA_SUMS_8 DFA_SUMS_7, DFA_FRAGMENT(14), DFA_FRAGMENT(15)
#define DFA_SUMS_9 DFA_SUMS_8, DFA_FRAGMENT(16), DFA_FRAGMENT(17)
#define DFA_SUMS_10 DFA_SUMS_9, DFA_FRAGMENT(18), DFA_FRAGMENT(19)
#define DFA_SUMS_11 DFA_SUMS_10, DFA_FRAGMENT(20), DFA_FRAGMENT(21)
#define DFA_SUMS_12 DFA_SUMS_11, DFA_FRAGMENT(22), DFA_FRAGMENT(23)
#define DFA_SUMS_13 DFA_SUMS_12, DFA_FRAGMENT(24), DFA_FRAGMENT(25)
#define DFA_SUMS_14 DFA_SUMS_13, DFA_FRAGMENT(26), DFA_FRAGMENT(27)
#define DFA_SUMS_15 DFA_SUMS_14, DFA_FRAGMENT(28), DFA_FRAGMENT(29)
#define DFA_SUMS_16 DFA_SUMS_15, DFA_FRAGMENT(30), DFA_FRAGMENT(31)
// clang-format on

// TYPES: the depth and the types; DIRECTIONS: of operands of 16 bits.
#define DFA_PRODUCT_SHARED(TYPES, SLICES, COLUMNS, A, B, KEEP, DIRECTIONS)               \
  asm volatile("{.reg .pred keep; setp.ne.b32 keep, " KEEP                               \
               ", 0;"                                                                    \
               "wgmma.mma_async.sync.aligned.m64n" #COLUMNS TYPES " {" DFA_TEXT_##SLICES \
               "}, " A ", " B ", keep, 1, 1" DIRECTIONS ";}"                             \
               : DFA_SUMS_##SLICES                                                       \
               : "l"(a), "l"(b), "n"(kKeep))

#define DFA_PRODUCT_REGISTERS(TYPES, SLICES, COLUMNS, A, B, KEEP, ADDS, DIRECTIONS)      \
  asm volatile("{.reg .pred keep; setp.ne.b32 keep, " KEEP                               \
               ", 0;"                                                                    \
               "wgmma.mma_async.sync.aligned.m64n" #COLUMNS TYPES " {" DFA_TEXT_##SLICES \
               "}, {" A "}, " B ", keep, 1, 1" DIRECTIONS ";}"                           \
               : DFA_SUMS_##SLICES                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADDS))

// d = a b^T (+ d where kKeep), both row by k in shared memory; d += a b, b k by column there;
// d = a^T b (+ d), both k by row there; d = a b^T (+ d) with a in registers, and d += a b with a
// there and b stored k by column. a and b are descriptors of tile/panel.h. In e4m3 operands are row
// by k alone.
#define DFA_E4M3 "k32.f32.e4m3.e4m3"
#define DFA_BF16 "k16.f32.bf16.bf16"
#define DFA_FP16 "k16.f32.f16.f16"
#define DFA_PRODUCTS(SLICES, COLUMNS, O0, O1, O2, O3, O4, O5)                                      \
  template <DType kElement, int kKeep>                                                             \
  DFA_DEVICE void multiply_shared(float(&d)[2 * SLICES][4], unsigned long long a,                  \
                                  unsigned long long b) {                                          \
    if constexpr (kElement == DType::bf16) {                                                       \
      DFA_PRODUCT_SHARED(DFA_BF16, SLICES, COLUMNS, O0, O1, O2, ", 0, 0");                         \
    } else if constexpr (kElement == DType::e4m3) {                                                \
      DFA_PRODUCT_SHARED(DFA_E4M3, SLICES, COLUMNS, O0, O1, O2, "");                               \
    } else {                                                                                       \
      DFA_PRODUCT_SHARED(DFA_FP16, SLICES, COLUMNS, O0, O1, O2, ", 0, 0");                         \
    }                                                                                              \
  }                                                                                                \
  template <DType kElement>                                                                        \
  DFA_DEVICE void multiply_shared_columns(float(&d)[2 * SLICES][4], unsigned long long a,          \
                                          unsigned long long b) {                                  \
    constexpr int kKeep = 1;                                                                       \
    if constexpr (kElement == DType::bf16) {                                                       \
      DFA_PRODUCT_SHARED(DFA_BF16, SLICES, COLUMNS, O0, O1, O2, ", 0, 1");                         \
    } else {                                                                                       \
      DFA_PRODUCT_SHARED(DFA_FP16, SLICES, COLUMNS, O0, O1, O2, ", 0, 1");                         \
    }                                                                                              \
  }                                                                                                \
  template <DType kElement, int kKeep>                                                             \
  DFA_DEVICE void multiply_transposed(float(&d)[2 * SLICES][4], unsigned long long a,              \
                                      unsigned long long b) {                                      \
    if constexpr (kElement == DType::bf16) {                                                       \
      DFA_PRODUCT_SHARED(DFA_BF16, SLICES, COLUMNS, O0, O1, O2, ", 1, 1");                         \
    } else {                                                                                       \
      DFA_PRODUCT_SHARED(DFA_FP16, SLICES, COLUMNS, O0, O1, O2, ", 1, 1");                         \
    }                                                                                              \
  }                                                                                                \
  template <DType kElement, int kKeep>                                                             \
  DFA_DEVICE void multiply_registers_rows(float(&d)[2 * SLICES][4], const unsigned(&a)[4],         \
                                          unsigned long long b) {                                  \
    if constexpr (kElement == DType::bf16) {                                                       \
      DFA_PRODUCT_REGISTERS(DFA_BF16, SLICES, COLUMNS, O0 "," O1 "," O2 "," O3, O4, O5, kKeep,     \
                            ", 0");                                                                \
    } else if constexpr (kElement == DType::e4m3) {                                                \
      DFA_PRODUCT_REGISTERS(DFA_E4M3, SLICES, COLUMNS, O0 "," O1 "," O2 "," O3, O4, O5, kKeep,     \
                            "");                                                                   \
    } else {                                                                                       \
      DFA_PRODUCT_REGISTERS(DFA_FP16, SLICES, COLUMNS, O0 "," O1 "," O2 "," O3, O4, O5, kKeep,     \
                            ", 0");                                                                \
    }                                                                                              \
  }                                                                                                \
  template <DType kElement>                                                                        \
  DFA_DEVICE void multiply_registers(float(&d)[2 * SLICES][4], const unsigned(&a)[4],              \
                                     unsigned long long b) {                                       \
    if constexpr (kElement == DType::bf16) {                                                       \
      DFA_PRODUCT_REGISTERS(DFA_BF16, SLICES, COLUMNS, O0 "," O1 "," O2 "," O3, O4, O5, 1, ", 1"); \
    } else {                                                                                       \
      DFA_PRODUCT_REGISTERS(DFA_FP16, SLICES, COLUMNS, O0 "," O1 "," O2 "," O3, O4, O5, 1, ", 1"); \
    }                                                                                              \
  }

DFA_PRODUCTS(3, 48, "%24", "%25", "%26", "%27", "%28", "%29")
DFA_PRODUCTS(4, 64, "%32", "%33", "%34", "%35", "%36", "%37")
DFA_PRODUCTS(5, 80, "%40", "%41", "%42", "%43", "%44", "%45")
DFA_PRODUCTS(6, 96, "%48", "%49", "%50", "%51", "%52", "%53")
DFA_PRODUCTS(7, 112, "%56", "%57", "%58", "%59", "%60", "%61")
DFA_PRODUCTS(8, 128, "%64", "%65", "%66", "%67", "%68", "%69")
DFA_PRODUCTS(9, 144, "%72", "%73", "%74", "%75", "%76", "%77")
DFA_PRODUCTS(10, 160, "%80", "%81", "%82", "%83", "%84", "%85")
DFA_PRODUCTS(11, 176, "%88", "%89", "%90", "%91", "%92", "%93")
DFA_PRODUCTS(12, 192, "%96", "%97", "%98", "%99", "%100", "%101")
DFA_PRODUCTS(16, 256, "%128", "%129", "%130", "%131", "%132", "%133")

#undef DFA_PRODUCTS
#undef DFA_E4M3
#undef DFA_BF16
#undef DFA_FP16
#undef DFA_PRODUCT_REGISTERS
#undef DFA_PRODUCT_SHARED

}  // namespace dfa::ptx
