#include "analysis/flops.h"

#include "analysis/walk.h"
#include "spec/flops.h"

namespace dfa::analysis {
namespace {

constexpr double kHidden = 4;  // of the MLP, in d_model

double real(std::int64_t value) { return static_cast<double>(value); }

// One product over all query heads: two operations for each pair and each of `depth` elements.
double product(const Problem& p, double pairs, std::int64_t depth) {
  return 2.0 * real(p.b) * real(p.hq) * pairs * real(depth);
}

double d_model(const Problem& p) { return real(p.hq * p.d); }

}  // namespace

double total_flops(const std::vector<Product>& products) {
  double sum = 0;
  for (const Product& item : products) sum += item.flops;
  return sum;
}

std::vector<Product> forward_products(const Problem& p, double pairs) {
  return {{"S = q k^T", product(p, pairs, p.d)}, {"o = P v", product(p, pairs, p.dv)}};
}

std::vector<Product> standard_backward_products(const Problem& p, double pairs) {
  return {{"dv = P^T do", product(p, pairs, p.dv)},
          {"dP = do v^T", product(p, pairs, p.dv)},
          {"dq = dS k", product(p, pairs, p.d)},
          {"dk = dS^T q", product(p, pairs, p.d)}};
}

std::vector<Product> flash_backward_products(const Problem& p, double pairs) {
  std::vector<Product> products{{"S = q k^T again", product(p, pairs, p.d)}};
  for (Product& item : standard_backward_products(p, pairs)) products.push_back(std::move(item));
  return products;
}

double tile_pairs(const Mask& mask, std::int64_t sq, std::int64_t sk, int block_q, int block_k) {
  return walk_queries(mask, sq, sk, block_q, block_k).pairs;
}

double tile_pairs(const Problem& p, int block_q, int block_k) {
  return walk_queries(p, block_q, block_k).pairs;
}

LayerFlops mlp_flops(const Problem& p) {
  const double tokens = real(p.b) * real(p.sq);
  const double forward = 2.0 * 2.0 * tokens * d_model(p) * kHidden * d_model(p);
  return {forward, 2.0 * forward};
}

LayerFlops projection_flops(const Problem& p) {
  const double q_and_o = real(p.sq) * real(p.hq) * real(p.d + p.dv);
  const double k_and_v = real(p.sk) * real(p.hk) * real(p.d + p.dv);
  const double forward = 2.0 * real(p.b) * d_model(p) * (q_and_o + k_and_v);
  return {forward, 2.0 * forward};
}

std::optional<double> length_where_attention_equals_mlp(const Problem& p) {
  if (p.blocks || (!p.mask.is_full() && !p.mask.is_causal())) return std::nullopt;
  // Per token: attention 2 hq (d + dv) s (half if causal), MLP 4 kHidden d_model^2.
  const double seen = p.mask.is_causal() ? 0.5 : 1.0;
  const double per_key = 2.0 * real(p.hq) * real(p.d + p.dv) * seen;
  return 4.0 * kHidden * d_model(p) * d_model(p) / per_key;
}

}  // namespace dfa::analysis
