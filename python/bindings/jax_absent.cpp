#include "python/bindings/core.h"

namespace dfa::python {

void bind_jax(nanobind::module_&) {}  // dfa._jax says how to build with JAX

}  // namespace dfa::python
