#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dfa/problem.h"

// Operations, split by matrix product, and those of the layers around attention. The convention
// that rates are quoted by is spec/flops.h; here is also what an algorithm really executes.
// A multiply-add is two operations; softmax, GELU, biases and dropout are not counted.
namespace dfa::analysis {

struct Product {
  std::string name;
  double flops = 0;
};

double total_flops(const std::vector<Product>& products);

// `pairs`: (query, key) pairs of one head that are multiplied. Standard attention multiplies all
// sq * sk; FlashAttention those of the tiles it visits.
std::vector<Product> forward_products(const Problem& problem, double pairs);

// With P kept from the forward: four products, twice the forward.
std::vector<Product> standard_backward_products(const Problem& problem, double pairs);

// With q k^T recomputed: five products, two and a half times the forward.
std::vector<Product> flash_backward_products(const Problem& problem, double pairs);

// (query, key) pairs in the tiles of block_q x block_k that hold at least one visible pair.
// Throws InvalidArgument beyond 2^24 query blocks.
double tile_pairs(const Mask& mask, std::int64_t sq, std::int64_t sk, int block_q, int block_k);
double tile_pairs(const Problem& p, int block_q, int block_k);

struct LayerFlops {
  double forward = 0;
  double backward = 0;  // gradients of the inputs and of the weights: twice the forward
};

// Two linear layers d_model -> 4 d_model -> d_model over b * sq tokens; d_model = hq * d.
LayerFlops mlp_flops(const Problem& problem);

// The linear layers that make q, k and v from d_model, and o back into it.
LayerFlops projection_flops(const Problem& problem);

// sq = sk from which attention's forward costs more than the MLP's. None under a window, where
// attention is linear in the length too.
std::optional<double> length_where_attention_equals_mlp(const Problem& problem);

}  // namespace dfa::analysis
