#include "bench/selftest.h"

#include <nanobind/nanobind.h>

#include <string>

#include "python/bindings/core.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dfa::python {
namespace {

nb::tuple selftest(const nb::callable& each) {
  const bench::SelftestCount count = bench::selftest([&](const bench::SelftestCase& one) {
    each(one.target.c_str(), one.problem.c_str(), name_of(one.outcome), one.share, one.text.c_str(),
         one.seconds);
  });
  return nb::make_tuple(count.ok, count.wrong, count.refused);
}

}  // namespace

void bind_selftest(nb::module_& core) {
  core.def(
      "selftest", &selftest, "each"_a,
      "Holds the kernels that work here against fp64 attention: each(target, problem line, "
      "outcome: ok, wrong or refused, error as a share of the bound, reason, seconds). Returns "
      "(ok, wrong, refused).");
}

}  // namespace dfa::python
