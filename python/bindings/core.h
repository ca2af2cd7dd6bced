#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "dfa/attention.h"

// The parts of the module dfa._core; python/dfa builds the package on them.
namespace dfa::python {

void bind_errors(nanobind::module_& core);
void bind_plan(nanobind::module_& core);
void bind_policy(nanobind::module_& core);
void bind_meter(nanobind::module_& core);
void bind_card_sensor(nanobind::module_& core);
void bind_energy_source(nanobind::module_& core);
void bind_jax(nanobind::module_& core);  // built where jax is: core.jax_targets
void bind_selftest(nanobind::module_& core);
void bind_texts(nanobind::module_& core);
void bind_torch(nanobind::module_& core);
void bind_torch_again(nanobind::module_& core);

// The plan that a policy chooses from a profile.
Plan plan_by_policy(const Problem& problem, const std::string& backend, const std::string& policy,
                    const std::string& profile);

}  // namespace dfa::python
