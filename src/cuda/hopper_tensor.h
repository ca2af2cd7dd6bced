#pragma once

#include "dfa/problem.h"
#include "gpu/tensor_map.h"
#include "kernels/tensor_map.h"

// Operands of Hopper's kernels as the copy engine is told of them.
namespace dfa::cuda {

// One tensor of b batches, all but its address, in boxes of 128 bytes of columns.
gpu::TiledTensor hopper_tensor(DType element, std::int64_t b, const Strides& strides,
                               std::int64_t heads, std::int64_t rows, std::int64_t columns,
                               int box_rows);

// Of q or o, so many of whose heads are neighbouring rows of a box (ForwardConfig::query_rows).
gpu::TiledTensor packed_hopper_tensor(DType element, std::int64_t b, const Strides& strides,
                                      std::int64_t heads, std::int64_t rows, std::int64_t columns,
                                      int box_rows, int packed);

// One of packed sequences of so many rows in all (SeqlenInfo): its second dimension ends where a
// sequence does, its fourth is where that end lies, its fifth takes the second's origin back. With
// heads that are neighbouring rows of a box the second and the third change places.
gpu::TiledTensor sequences_hopper_tensor(DType element, std::int64_t b, const Strides& strides,
                                         std::int64_t heads, std::int64_t rows,
                                         std::int64_t columns, int box_rows, int packed = 1);

// Of k or v in so many pages: the whole cache as one packed sequence. Pages lie whole numbers of
// rows apart (page_step).
gpu::TiledTensor paged_hopper_tensor(DType element, std::int64_t pages, const Strides& strides,
                                     std::int64_t heads, std::int64_t page_rows,
                                     std::int64_t columns, int box_rows);

// Rows from one page to the next; 0 where there is one.
std::int64_t page_step(std::int64_t pages, const Strides& strides);

// On the device of the caller's gpu::Scope.
void encode(gpu::TiledTensor tensor, const void* address, TensorMap& map);

}  // namespace dfa::cuda
