#include "analysis/traffic.h"

#include <algorithm>
#include <cmath>

#include "analysis/flops.h"
#include "analysis/tensors.h"
#include "analysis/walk.h"
#include "dfa/error.h"

namespace dfa::analysis {
namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

// Keys that at least one query sees, as a share of all; a window need not touch every key, nor
// lists every block.
double seen_keys(const Problem& p) {
  if (p.blocks) {
    return walk_queries(p, static_cast<int>(p.sq), static_cast<int>(p.blocks->block_k)).inner /
           real(p.sk);
  }
  const auto begin = p.mask.key_begin(0, p.sq, p.sk);
  const auto end = p.mask.key_end(p.sq - 1, p.sq, p.sk);
  return real(std::max<std::int64_t>(0, end - begin)) / real(p.sk);
}

double seen_queries(const Problem& p) {
  if (p.blocks) {
    return walk_keys(p, static_cast<int>(p.blocks->block_q), static_cast<int>(p.sk)).inner /
           real(p.sq);
  }
  const auto begin = p.mask.query_begin(0, p.sq, p.sk);
  const auto end = p.mask.query_end(p.sk - 1, p.sq, p.sk);
  return real(std::max<std::int64_t>(0, end - begin)) / real(p.sq);
}

// The bias of each visited tile: of every head from memory, else of what is stored once.
double read_bias(const Problem& p, int block_q, int block_k, Reread reread) {
  const double pairs = tile_pairs(p, block_q, block_k);
  if (reread == Reread::cache) return Tensors(p).bias * pairs / (real(p.sq) * real(p.sk));
  const double values = pairs / ((p.bias->of_query ? 1 : block_q) * (p.bias->of_key ? 1 : block_k));
  return real(p.b) * real(p.hq) * values * bytes_of(p.bias->dtype);
}

// Query heads whose blocks run at once when every unit holds one block.
double heads_in_flight(std::int64_t heads, double blocks_a_head, int units) {
  return std::min(real(heads), std::ceil(units / blocks_a_head));
}

Reread in_cache(double bytes, const Machine& machine) {
  return bytes <= real(machine.cache_bytes) ? Reread::cache : Reread::memory;
}

}  // namespace

double Traffic::read_bytes() const {
  double sum = 0;
  for (const Transfer& step : steps) sum += step.read_bytes;
  return sum;
}

double Traffic::write_bytes() const {
  double sum = 0;
  for (const Transfer& step : steps) sum += step.write_bytes;
  return sum;
}

Traffic standard_forward(const Problem& p, const StandardPasses& passes) {
  const Tensors t(p);
  Traffic traffic;
  traffic.steps.push_back({"S = q k^T", t.q + t.k, t.scores});
  if (p.bias) traffic.steps.push_back({"S + bias", t.scores + t.bias, t.scores});
  if (passes.additive_mask) traffic.steps.push_back({"S + mask", t.scores, t.scores});
  traffic.steps.push_back({"P = softmax(S)", t.scores, t.scores});
  if (passes.dropout) traffic.steps.push_back({"dropout(P)", t.scores, t.scores + t.mask});
  traffic.steps.push_back({"o = P v", t.scores + t.v, t.o});
  return traffic;
}

Traffic standard_backward(const Problem& p, const StandardPasses& passes) {
  const Tensors t(p);
  Traffic traffic;
  traffic.steps.push_back({"dv = P^T do", t.scores + t.o, t.v});
  traffic.steps.push_back({"dP = do v^T", t.o + t.v, t.scores});
  if (passes.dropout) traffic.steps.push_back({"dropout'(dP)", t.scores + t.mask, t.scores});
  traffic.steps.push_back({"dS = P (dP - sum P dP)", 2 * t.scores, t.scores});
  if (p.bias) traffic.steps.push_back({"dbias = sum dS", t.scores, t.d_bias});
  traffic.steps.push_back({"dq = dS k", t.scores + t.k, t.q});
  traffic.steps.push_back({"dk = dS^T q", t.scores + t.q, t.k});
  return traffic;
}

Traffic flash_forward(const Problem& p, const ForwardConfig& config, Reread reread) {
  const Tensors t(p);
  double kv = (t.k + t.v) * seen_keys(p);
  if (reread == Reread::memory) {
    const Walk walk = walk_queries(p, config.block_q, config.block_k);
    kv = real(p.b) * real(p.hq) * walk.inner * real(p.d + p.dv) * bytes_of(p.dtype);
  }
  Traffic traffic{{{"q", t.q, 0}, {"k, v", kv, 0}, {"o", 0, t.o}, {"lse", 0, t.row}}};
  if (p.bias) {
    const double read = read_bias(p, config.block_q, config.block_k, reread);
    traffic.steps.push_back({"bias", read, 0});
  }
  return traffic;
}

Traffic flash_backward(const Problem& p, const BackwardConfig& config, Reread reread) {
  const Tensors t(p);
  const double once = seen_queries(p);
  double visits = once;  // key blocks that a query row takes part in, the mean over rows
  if (reread == Reread::memory) {
    visits = walk_keys(p, config.block_q, config.block_k).inner / real(p.sq);
  }
  Traffic traffic{{{"delta = rowsum(do o)", 2 * t.o, t.row},
                   {"k, v", t.k + t.v, 0},
                   {"q, do, lse, delta", visits * (t.q + t.o + 2 * t.row), 0},
                   {"dq sums", (visits - once) * t.dq_sums, visits * t.dq_sums},
                   {"dq", t.dq_sums, t.q},
                   {"dk, dv", 0, t.k + t.v}}};
  if (p.bias) {
    const double read = read_bias(p, config.block_q, config.block_k, reread);
    traffic.steps.push_back({"bias, dbias", read, t.d_bias});
  }
  return traffic;
}

Reread reread_of(const Problem& p, const ForwardConfig& config, const Machine& machine) {
  const Tensors t(p);
  const double blocks = std::ceil(real(p.sq) / config.block_q);
  const double heads = heads_in_flight(p.b * p.hq, blocks, machine.units);
  const double kv_heads = std::ceil(heads * real(p.hk) / real(p.hq));
  return in_cache(kv_heads * (t.k + t.v) / real(p.b * p.hk), machine);
}

Reread reread_of(const Problem& p, const BackwardConfig& config, const Machine& machine) {
  const Tensors t(p);
  const double blocks = std::ceil(real(p.sk) / config.block_k);
  const double heads = heads_in_flight(p.b * p.hq, blocks, machine.units);
  const double bytes = t.q + t.o + 2 * t.row + t.dq_sums;
  return in_cache(heads * bytes / real(p.b * p.hq), machine);
}

IoComplexity io_complexity(const Problem& p, std::int64_t sram_bytes) {
  if (sram_bytes < 1) {
    throw InvalidArgument("analysis: sram of " + std::to_string(sram_bytes) +
                          " bytes; accepted: 1 or more");
  }
  const double heads = real(p.b) * real(p.hq);
  const double depth = real(p.d + p.dv) / 2;
  const double length = real(p.sq + p.sk) / 2;
  const double square = real(p.sq) * real(p.sk);
  IoComplexity io;
  io.sram_elements = real(sram_bytes) / bytes_of(p.dtype);
  io.standard = heads * (length * depth + square);
  io.flash = heads * square * depth * depth / io.sram_elements;
  io.in_range = depth <= io.sram_elements && io.sram_elements <= length * depth;
  return io;
}

}  // namespace dfa::analysis
