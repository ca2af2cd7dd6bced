#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <optional>

namespace dfa::python {

// Codes of DLPack: a device type, and element types.
constexpr std::int32_t kCuda = 2;
constexpr std::uint8_t kFloat = 2, kBFloat = 4;

// What a plan depends on, as one run of words.
struct Fields {
  std::array<std::int64_t, 4> shape{}, strides{};
  std::int32_t dimensions = 0, type = 0, device_type = 0, device = 0;
};

struct Tensor {
  Fields fields;
  void* data = nullptr;
};

// Keeps the first four dimensions, and how many there are.
Fields fields_of(const std::int64_t* shape, const std::int64_t* strides, std::int32_t dimensions);

// function(argument) and function(): of the stable ABI, unlike PyObject_CallOneArg, and as cheap.
nanobind::object call(nanobind::handle function, nanobind::handle argument);
nanobind::object call(nanobind::handle function);

// PyTorch's tensors by the table of functions of DLPack 1 (DLPackExchangeAPI), with which a library
// hands out its tensors' fields without making an object, or by a function in Python.
class TensorReader {
 public:
  // table: a capsule, or None. fields(tensor): (address, shape, strides, number of the element
  // type, device type and device as DLPack counts them).
  TensorReader(const nanobind::object& table, nanobind::object fields);

  bool has_table() const { return read_ != nullptr; }

  // By the table. Nothing where DLPack does not know the tensor's device or memory, or does not
  // tell all: numbers of the other sign than in memory (a negative bit).
  std::optional<Tensor> read(nanobind::handle tensor) const;

  Tensor read_attributes(nanobind::handle tensor) const;

 private:
  int (*read_)(void*, nanobind::dlpack::dltensor*) = nullptr;
  nanobind::object fields_;
};

}  // namespace dfa::python
