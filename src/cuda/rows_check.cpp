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

}  // namespace

std::unique_ptr<RowsCheck> rows_check(const Problem& p, int rows, const gpu::Device& device) {
  if (rows < 1 || rows > 1 << 16) {
    throw InvalidArgument("rows " + std::to_string(rows) + "; accepted: 1 to 65536");
  }
  if (std::max(p.d, p.dv) > kMostColumns) {
    throw Unsupported("rows of '" + to_line(p) + "' are not checked: d and dv are at most 256");
  }
  if (p.dtype == DType::e4m3) {
    throw Unsupported("rows of '" + to_line(p) + "' are not checked: its inputs are e4m3");
  }
  if (p.dropout > 0) {
    throw Unsupported("rows of '" + to_line(p) + "' are not checked: leave dropout(…) out");
  }
  if (p.blocks) throw Unsupported("rows of '" + to_line(p) + "' are not checked: it has blocks(…)");
  return std::make_unique<CheckRows>(p, rows, device);
}

}  // namespace dfa::cuda
