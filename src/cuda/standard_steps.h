#pragma once

#include <cstddef>
#include <variant>
#include <vector>

#include "dfa/attention.h"
#include "gpu/product.h"
#include "kernels/launch.h"
#include "kernels/standard/args.h"

// Standard attention as a list of steps over matrices that are there: a pure function of the
// problem. No pointer is known yet; a step names tensors and places in the workspace.
namespace dfa::cuda {

enum class Tensor : int { none, q, k, v, o, lse, d_o, dq, dk, dv, probabilities, workspace };

struct Place {
  Tensor tensor = Tensor::none;
  std::size_t offset = 0;  // bytes
};

struct ProductStep {
  gpu::ProductShape shape;
  float alpha = 1;
  Place left, right, out;
};

// S to P and lse, or P and dP to dS.
struct ScoreStep {
  KernelLaunch launch;
  ScoreArgs args;  // pointers null
  Place scores, gradients, lse;
};

struct CopyStep {
  KernelLaunch launch;
  CopyArgs args;  // pointers null
  Place from, to;
};

using StandardStep = std::variant<ProductStep, ScoreStep, CopyStep>;

struct StandardPass {
  std::vector<StandardStep> steps;
  std::size_t matrix_bytes = 0;         // of S, or of S and dP, in the workspace
  std::size_t probabilities_bytes = 0;  // of P, where it is stored: the caller's memory
  std::size_t copy_bytes = 0;           // of tensors that products cannot read or write as they lie
  std::size_t product_offset = 0;       // kProductBytes of scratch for the products, at the end
  std::size_t workspace_bytes = 0;
};

// Scratch for cuBLASLt, beyond which it will not go.
inline constexpr std::size_t kProductBytes = std::size_t{4} << 20;

// On a device of this compute capability (75, 90).
Verdict check_standard(const Problem& problem, int capability);

// Require check_standard(). S and dP are fp32; P takes the place of S and dS that of dP, both in
// the element type. S is scale q k^T. stored: S and P lie in Tensor::probabilities, and the
// backward takes P from there as the forward left it, so that neither q k^T nor a softmax runs.
StandardPass standard_forward_pass(const Problem& problem, bool stored = false);
StandardPass standard_backward_pass(const Problem& problem, bool stored = false);

// Of the steps of the problem's passes, those that are kernels of ours.
std::vector<KernelLaunch> standard_launches(const Problem& problem);

}  // namespace dfa::cuda
