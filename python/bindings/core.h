#pragma once

#include <nanobind/nanobind.h>

// The parts of the module dfa._core; python/dfa builds the package on them.
namespace dfa::python {

void bind_errors(nanobind::module_& core);
void bind_plan(nanobind::module_& core);
void bind_meter(nanobind::module_& core);
void bind_jax(nanobind::module_& core);  // built where jax is: core.jax_targets

}  // namespace dfa::python
