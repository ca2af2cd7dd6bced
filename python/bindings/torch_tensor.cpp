#include "python/bindings/torch_tensor.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace dfa::python {
namespace {

// Only one of the functions is called here.
struct ExchangeTable {
  std::uint32_t major, minor;
  void* previous;
  void* managed_tensors[3];
  int (*read)(void* tensor, nb::dlpack::dltensor* fields);
  void* current_stream;
};

// The answer of tensor.is_neg().
bool is_negative(nb::handle tensor) {
  static PyObject* const name = PyUnicode_InternFromString("is_neg");
  PyObject* arguments[] = {nullptr, tensor.ptr()};
  PyObject* answer =
      PyObject_VectorcallMethod(name, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (answer == nullptr) throw nb::python_error();
  Py_DECREF(answer);  // True and False outlive all
  return answer == Py_True;
}

nb::object checked(PyObject* result) {
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

}  // namespace

Fields fields_of(const std::int64_t* shape, const std::int64_t* strides, std::int32_t dimensions) {
  Fields fields{.dimensions = dimensions};
  const std::int32_t kept = std::min(dimensions, 4);
  std::copy_n(shape, kept, fields.shape.begin());
  std::copy_n(strides, kept, fields.strides.begin());
  return fields;
}

// The place in front of the argument is lent, so that a method can put its object there.
nb::object call(nb::handle function, nb::handle argument) {
  PyObject* arguments[] = {nullptr, argument.ptr()};
  return checked(PyObject_Vectorcall(function.ptr(), arguments + 1,
                                     1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

nb::object call(nb::handle function) {
  PyObject* arguments[] = {nullptr};
  return checked(PyObject_Vectorcall(function.ptr(), arguments + 1,
                                     0 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

TensorReader::TensorReader(const nb::object& table, nb::object fields)
    : fields_(std::move(fields)) {
  if (table.is_none()) return;
  const auto* functions =
      static_cast<const ExchangeTable*>(PyCapsule_GetPointer(table.ptr(), "dlpack_exchange_api"));
  if (functions == nullptr) throw nb::python_error();
  if (functions->major == 1) read_ = functions->read;
}

std::optional<Tensor> TensorReader::read(nb::handle tensor) const {
  nb::dlpack::dltensor raw{};
  if (read_ == nullptr || read_(tensor.ptr(), &raw) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  // Of half of a complex tensor what lies in memory may have the other sign, which DLPack does not
  // tell; there are complex types of these floats alone.
  if (raw.dtype.code == kFloat && is_negative(tensor)) return std::nullopt;
  Tensor read = {.fields = fields_of(raw.shape, raw.strides, raw.ndim),
                 .data = static_cast<std::byte*>(raw.data) + raw.byte_offset};
  read.fields.type = raw.dtype.code << 16U | raw.dtype.bits;
  read.fields.device_type = raw.device.device_type;
  read.fields.device = raw.device.device_id;
  return read;
}

Tensor TensorReader::read_attributes(nb::handle tensor) const {
  using Values = std::tuple<std::uintptr_t, std::vector<std::int64_t>, std::vector<std::int64_t>,
                            std::int32_t, std::int32_t, std::int32_t>;
  const auto [data, shape, strides, type, device_type, device] =
      nb::cast<Values>(call(fields_, tensor));
  Tensor read = {
      .fields = fields_of(shape.data(), strides.data(), static_cast<std::int32_t>(shape.size())),
      .data = reinterpret_cast<void*>(data)};  // NOLINT(performance-no-int-to-ptr)
  read.fields.type = type;
  read.fields.device_type = device_type;
  read.fields.device = device;
  return read;
}

}  // namespace dfa::python
