#include <exception>

#include "dfa/error.h"
#include "python/bindings/core.h"

namespace dfa::python {
namespace {

// The text stays; the type is the nearest that Python has.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const OutOfMemory& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const IoError& error) {
    PyErr_SetString(PyExc_OSError, error.what());
  } catch (const Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

}  // namespace

void bind_errors(nanobind::module_&) { nanobind::register_exception_translator(translate); }

}  // namespace dfa::python
