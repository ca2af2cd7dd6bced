#include "cuda/rows_check.h"

#include <algorithm>
#include <vector>

#include "cuda/loaded_kernels.h"
#include "gpu/buffer.h"
#include "kernels/check/args.h"

namespace dfa::cuda {
namespace {

constexpr std::int64_t kMostColumns = 256;

class CheckRows final : public RowsCheck {
 public:
  CheckRows(const Problem& p, int rows, const gpu::Device& device)
      : device_(device),
        errors_(static_cast<std::size_t>(rows)),
        on_device_(device, errors_.size() * sizeof(float)) {
    const KernelLaunch launch = rows_launch(p, rows);
    kernel_ = loaded_kernel(device, launch);
    shape_ = shape_of(launch);
    args_.args = kernel_args(p);
    args_.rows = p.b * p.hq * p.sq;
  }

  double error(const ForwardArgs& args, std::uint64_t seed, Queue queue) override {
    RowsArgs all = args_;
    all.args = with_pointers(args_.args, args);
    all.errors = static_cast<float*>(on_device_.data());
    all.seed = seed;
    const gpu::Stream stream = gpu::Stream::foreign(device_, queue.stream);
    gpu::launch(kernel_, shape_, stream, all);
    gpu::copy_out(stream, errors_.data(), on_device_.data(), on_device_.bytes());
    stream.synchronize();
    return *std::max_element(errors_.begin(), errors_.end());
  }

 private:
  const gpu::Device& device_;
  std::vector<float> errors_;
  gpu::Buffer on_device_;
  gpu::Kernel kernel_;
  gpu::Launch shape_;
  RowsArgs args_{};
};

// What the kernel knows: dense tensors of one element type, masks, and logits that are plain.
Verdict checks_rows_of(const Problem& p) {
  if (p.packed() || p.paged()) return Verdict::no("sequences are packed, or lie in pages");
  if (std::max(p.d, p.dv) > kMostColumns) return Verdict::no("d and dv are at most 256");
  if (p.dtype == DType::e4m3) return Verdict::no("its inputs are e4m3");
  if (p.kv_dtype() != p.dtype) return Verdict::no("k and v are of another type than q");
  if (!p.plain_logits()) return Verdict::no("it has softcap(…), alibi, bias(…) or sink");
  if (p.dropout > 0) return Verdict::no("leave dropout(…) out");
  return p.blocks ? Verdict::no("it has blocks(…)") : Verdict::yes();
}

}  // namespace

std::unique_ptr<RowsCheck> rows_check(const Problem& p, int rows, const gpu::Device& device) {
  if (rows < 1 || rows > 1 << 16) {
    throw InvalidArgument("rows " + std::to_string(rows) + "; accepted: 1 to 65536");
  }
  if (const Verdict ok = checks_rows_of(p); !ok) {
    throw Unsupported("rows of '" + to_line(p) + "' are not checked: " + ok.reason);
  }
  return std::make_unique<CheckRows>(p, rows, device);
}

}  // namespace dfa::cuda
