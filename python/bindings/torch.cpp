#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dfa/attention.h"
#include "python/bindings/core.h"
#include "python/bindings/torch_tensor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dfa::python {
namespace {

using Key = std::array<Fields, 3>;
static_assert(std::has_unique_object_representations_v<Key>);

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::array<std::uint64_t, sizeof(Key) / 8> words{};
    std::memcpy(words.data(), key.data(), sizeof(Key));
    std::uint64_t hash = 0;
    for (const std::uint64_t word : words) hash = (hash ^ word) * 0x9E3779B97F4A7C15U >> 1U ^ hash;
    return hash;
  }
};
struct KeyEqual {
  bool operator()(const Key& a, const Key& b) const {
    return std::memcmp(a.data(), b.data(), sizeof(Key)) == 0;
  }
};

// Something a call returns or needs: made by make(like), where `like` has no memory of its own.
struct Output {
  nb::object make, like;
  nb::object operator()() const { return call(make, like); }
};

// A number of elements at other than the dense place of a dimension of one element means nothing.
bool lie_alike(const Fields& a, const Fields& b) {
  for (std::size_t i = 0; i < a.shape.size(); ++i) {
    if (a.shape[i] > 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

bool of_one_kind(const Fields& a, const Fields& b) {
  return a.shape == b.shape && a.dimensions == b.dimensions && a.type == b.type &&
         a.device_type == b.device_type && a.device == b.device;
}

// What calls with tensors of the same fields have in common.
struct Call {
  nb::object owner;
  const Plan* plan = nullptr;
  std::vector<Output> outputs;
  std::vector<Fields> fields;  // of the outputs
  Output workspace;            // none when the plan needs none
};

// The calls of dfa.attention on PyTorch's tensors with one set of options. A call that has been
// made before with tensors of these shapes, strides, types and devices is: read the fields, look
// up, allocate, launch. Everything else is asked of the functions in Python, once.
class Calls {
 public:
  // table: a capsule of DLPack's functions or None; fields(tensor): the same by attributes.
  // stream(device index). prepare("fwd" or "bwd", q, k, v): checks, then
  // (plan, [(make, like) of each output], of the workspace or None). same_strides(tensor, like): a
  // copy.
  Calls(const nb::object& table, nb::object fields, nb::object stream, nb::object prepare,
        nb::object same_strides)
      : reader_(table, std::move(fields)),
        stream_(std::move(stream)),
        prepare_(std::move(prepare)),
        same_strides_(std::move(same_strides)) {}

  nb::object forward(nb::handle q, nb::handle k, nb::handle v, bool with_lse) {
    return forward_beside(q, k, v, with_lse, 0);
  }

  // margin: multiprocessors that are left to what runs beside it, by kernels that take a budget.
  nb::object forward_beside(nb::handle q, nb::handle k, nb::handle v, bool with_lse, int margin) {
    const std::array<Tensor, 3> in = {read(q), read(k), read(v)};
    const std::shared_ptr<const Call> call = find(forwards_, "fwd", in, q, k, v);
    nb::object o = call->outputs[0]();
    nb::object lse = with_lse ? call->outputs[1]() : nb::object();
    const nb::object memory = workspace(*call);
    const ForwardArgs arguments = {.q = in[0].data,
                                   .k = in[1].data,
                                   .v = in[2].data,
                                   .o = data(o),
                                   .lse = static_cast<float*>(data(lse)),
                                   .workspace = data(memory)};
    const Queue queue = {.stream = stream(in[0].fields),
                         .sm_budget = budget_of(call->plan->forward_sms, margin)};
    {
      const nb::gil_scoped_release others_run;
      dfa::forward(*call->plan, arguments, queue);
    }
    if (!with_lse) return o;
    return nb::make_tuple(std::move(o), std::move(lse));
  }

  // The plan of a forward of such tensors.
  nb::object plan(nb::handle q, nb::handle k, nb::handle v) {
    return find(forwards_, "fwd", {read(q), read(k), read(v)}, q, k, v)->owner;
  }

  nb::tuple backward(nb::object d_o, nb::handle q, nb::handle k, nb::handle v, nb::handle o,
                     nb::handle lse) {
    const std::array<Tensor, 3> in = {read(q), read(k), read(v)};
    const std::shared_ptr<const Call> call = find(backwards_, "bwd", in, q, k, v);
    const nb::object out = as_planned("o", o, *call, kOutput);
    const nb::object sums = as_planned("lse", lse, *call, kOutput + 1);
    d_o = as_planned("d_o", d_o, *call, kOutput);
    nb::object dq = call->outputs[0]();
    nb::object dk = call->outputs[1]();
    nb::object dv = call->outputs[2]();
    const nb::object memory = workspace(*call);
    const BackwardArgs arguments = {.q = in[0].data,
                                    .k = in[1].data,
                                    .v = in[2].data,
                                    .o = data(out),
                                    .lse = static_cast<float*>(data(sums)),
                                    .d_o = data(d_o),
                                    .dq = data(dq),
                                    .dk = data(dk),
                                    .dv = data(dv),
                                    .workspace = data(memory)};
    const Queue queue = {.stream = stream(in[0].fields)};
    {
      const nb::gil_scoped_release others_run;
      dfa::backward(*call->plan, arguments, queue);
    }
    return nb::make_tuple(std::move(dq), std::move(dk), std::move(dv));
  }

 private:
  // Shared: another thread may empty the map while this one, waiting for PyTorch, uses its call.
  using Map = std::unordered_map<Key, std::shared_ptr<const Call>, KeyHash, KeyEqual>;
  static constexpr std::size_t kMost = 1024;
  static constexpr std::size_t kOutput = 3;  // o and lse, after a backward's dq, dk, dv

  // The tensor itself, or a copy that lies in memory as the plan has it: what a hook of autograd
  // keeps comes back in any layout, and a tensor of zeros without memory has none.
  nb::object as_planned(const char* name, nb::handle tensor, const Call& call,
                        std::size_t index) const {
    const Tensor given = read(tensor);
    const Fields& planned = call.fields[index];
    if (!of_one_kind(given.fields, planned)) {
      throw nb::value_error((std::string("dfa::backward: ") + name +
                             " has another shape, element type or device than the forward gave")
                                .c_str());
    }
    if (given.data != nullptr && lie_alike(given.fields, planned)) return nb::borrow(tensor);
    return same_strides_(tensor, call.outputs[index].like);
  }

  Tensor read(nb::handle tensor) const {
    if (const std::optional<Tensor> read = reader_.read(tensor)) return *read;
    return reader_.read_attributes(tensor);  // prepare() will say what is accepted
  }

  void* data(nb::handle tensor) const { return tensor.is_valid() ? read(tensor).data : nullptr; }

  void* stream(const Fields& fields) const {
    if (fields.device_type != kCuda) return nullptr;
    return PyLong_AsVoidPtr(call(stream_, nb::int_(fields.device)).ptr());
  }

  // Two at least, which kernels of pairs of blocks take.
  static int budget_of(int sms, int margin) {
    return sms > 2 && margin > 0 ? std::max(2, sms - margin) : 0;
  }

  static nb::object workspace(const Call& call) {
    return call.workspace.make.is_valid() ? call.workspace() : nb::object();
  }

  std::shared_ptr<const Call> find(Map& map, const char* passes, const std::array<Tensor, 3>& in,
                                   nb::handle q, nb::handle k, nb::handle v) const {
    const Key key = {in[0].fields, in[1].fields, in[2].fields};
    if (const auto found = map.find(key); found != map.end()) {
      if (fits_context(*found->second->plan)) return found->second;
    }
    const auto made = nb::cast<nb::tuple>(prepare_(passes, q, k, v));
    auto call = std::make_shared<Call>();
    call->owner = made[0];
    call->plan = nb::cast<const Plan*>(call->owner);
    for (const nb::handle pair : made[1]) {
      call->outputs.push_back({pair[0], pair[1]});
      call->fields.push_back(read(pair[1]).fields);
    }
    if (!made[2].is_none()) call->workspace = {made[2][0], made[2][1]};
    if (map.size() >= kMost) map.clear();
    map.insert_or_assign(key, call);
    return call;
  }

  TensorReader reader_;
  nb::object stream_, prepare_, same_strides_;
  Map forwards_, backwards_;
};

}  // namespace

void bind_torch(nb::module_& core) {
  nb::class_<Calls>(core, "Calls", "Calls on PyTorch's tensors with one set of options.")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object>(), "table"_a.none(),
           "fields"_a, "stream"_a.none(), "prepare"_a, "same_strides"_a)
      .def("forward", &Calls::forward, "o, or (o, lse) with_lse.")
      .def("forward_beside", &Calls::forward_beside,
           "forward(…, margin), with that many multiprocessors left free.")
      .def("plan", &Calls::plan, "That of forward(q, k, v).")
      .def("backward", &Calls::backward, "(dq, dk, dv) of (d_o, q, k, v, o, lse).");
}

}  // namespace dfa::python
