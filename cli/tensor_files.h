#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "dfa/problem.h"
#include "spec/quantize.h"

// Tensors between array files and the buffers of a problem.
namespace dfa::cli {

// "F.npy", "F.safetensors" or "F.safetensors:NAME"; empty: not given. A .safetensors file without
// a name gives the tensor called like the option: q, k, v or do.
struct InputFiles {
  std::string q, k, v, d_o;

  bool any() const { return !(q + k + v + d_o).empty(); }
};

struct Inputs {
  Problem problem;
  bool batched = true;             // the files have a batch dimension
  AlignedBuffer q, k, v, d_o;      // in the problem's type and strides; empty: not from a file
  HostDescales factors;            // of a problem in e4m3 and files of wider types
  std::vector<std::string> notes;  // one line a file: what it held and whether it was rounded
};

// Reads files for a problem line whose sizes may be left out: then they come from the files, whose
// shape is (b,h,s,d) or (h,s,d), or (b,s,h,d) or (s,h,d) with layout(bshd). Sizes in the line are
// held against the files. For a problem in e4m3 wider types are rounded with a factor for each
// batch and key head, e4m3 is taken as it is, with the factor 1. Throws InvalidArgument on a
// mismatch, on a value that is not finite and on one that the problem's type cannot hold.
Inputs read_inputs(const std::string& line, const InputFiles& files);

// One tensor of a problem: where its elements are.
struct TensorView {
  const void* data = nullptr;
  DType type = DType::fp32;
  Strides strides;
  std::int64_t b = 1, h = 1, s = 1, d = 1;
  Layout layout = Layout::bhsd;
};

// Writes the view densely, in the order of its layout: fp16 as <f2, all else as <f4, which holds
// bf16 exactly and every NumPy reads. Throws IoError and leaves an older file as it was.
void write_tensor(const std::filesystem::path& path, const TensorView& view, bool batched);

// lse, [b, hq, sq], dense.
void write_lse(const std::filesystem::path& path, const float* lse, const Problem& problem,
               bool batched);

}  // namespace dfa::cli
