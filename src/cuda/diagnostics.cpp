#include "cuda/diagnostics.h"

#include "cuda/ceilings.h"
#include "cuda/chosen_device.h"
#include "cuda/rows_check.h"
#include "dfa/error.h"

namespace dfa::cuda {
namespace {

class CudaDiagnostics final : public Diagnostics {
 public:
  Ceilings measure_ceilings(int, double seconds) const override {
    return cuda::measure_ceilings(chosen_device(), seconds);
  }

  std::unique_ptr<RowsCheck> rows_check(const Problem& p, int rows) const override {
    return cuda::rows_check(p, rows, chosen_device());
  }
};

}  // namespace

const Diagnostics& cuda_diagnostics() {
  static const CudaDiagnostics diagnostics;
  return diagnostics;
}

}  // namespace dfa::cuda
