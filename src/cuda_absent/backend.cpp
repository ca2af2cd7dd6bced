#include "cuda/backend.h"

#include "cuda_absent/reason.h"

namespace dfa {
namespace {

class AbsentCudaBackend final : public Backend {
 public:
  std::string name() const override { return "cuda"; }
  std::string description() const override { return ""; }
  Verdict available() const override { return Verdict::no(kNoCuda); }
  Limits limits() const override { refuse(); }
  Verdict supports(const Problem&, const PlanOptions&) const override { return available(); }

  Plan plan(const Problem&, const PlanOptions&) const override { refuse(); }
  void forward(const Plan&, const ForwardArgs&, Queue) const override { refuse(); }
  void backward(const Plan&, const BackwardArgs&, Queue) const override { refuse(); }
  const Device& device() const override { refuse(); }
  const Diagnostics& diagnostics() const override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw Unsupported(std::string("backend cuda: ") + kNoCuda); }
};

}  // namespace

const Backend& cuda_backend() {
  static const AbsentCudaBackend backend;
  return backend;
}

}  // namespace dfa
