#include "python/bindings/core.h"

#include "dfa/version.h"

NB_MODULE(_core, core) {
  nanobind::set_leak_warnings(false);  // plans stay in a cache until the process ends
  core.doc() =
      "What the package dfa is built on. Pointers are integers; use dfa.attention instead.";
  core.attr("version") = dfa::kVersion;
  dfa::python::bind_errors(core);
  dfa::python::bind_plan(core);
  dfa::python::bind_meter(core);
  dfa::python::bind_card_sensor(core);
  dfa::python::bind_energy_source(core);
  dfa::python::bind_policy(core);
  dfa::python::bind_jax(core);
  dfa::python::bind_torch(core);
  dfa::python::bind_torch_again(core);
  dfa::python::bind_selftest(core);
  dfa::python::bind_texts(core);
}
