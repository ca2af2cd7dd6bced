#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
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

constexpr Py_ssize_t kMostArguments = 48;
constexpr std::size_t kMostWords = 320;

// What the words of a key are of. Kinds keep apart what is equal: True, 1 and 1.0.
enum class Kind : std::uint64_t { none = 1, no, yes, integer, real, text, tuple, tensor };

// A door's arguments, read: what a call depends on as words, and where its tensors lie.
class Given {
 public:
  void add(std::uint64_t word) {
    if (count_ < kMostWords) words_[count_] = word;
    ++count_;
  }
  void add(Kind kind) { add(static_cast<std::uint64_t>(kind)); }

  bool fits() const { return count_ <= kMostWords; }
  std::span<const std::uint64_t> words() const { return {words_.data(), count_}; }

  std::array<void*, kMostArguments> pointers{};  // null: no tensor
  bool on_host = false;                          // one of them is

 private:
  std::array<std::uint64_t, kMostWords> words_;  // NOLINT: the first count_ are written
  std::size_t count_ = 0;
};

struct WordsHash {
  using is_transparent = void;
  // In two chains that do not wait for each other.
  std::size_t operator()(std::span<const std::uint64_t> words) const {
    constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15U;
    std::uint64_t even = words.size(), odd = kFactor;
    std::size_t i = 0;
    for (; i + 1 < words.size(); i += 2) {
      even = std::rotl((even ^ words[i]) * kFactor, 29);
      odd = std::rotl((odd ^ words[i + 1]) * kFactor, 29);
    }
    if (i < words.size()) even = std::rotl((even ^ words[i]) * kFactor, 29);
    return even ^ odd * kFactor;
  }
};
struct WordsEqual {
  using is_transparent = void;
  bool operator()(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) const {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
  }
};

bool is_true(const nb::object& value) {
  if (!value.is_valid()) throw nb::python_error();
  return value.ptr() != Py_False && PyObject_IsTrue(value.ptr()) != 0;
}

// function(*arguments) of a key, which begins with a name.
nb::object call_with_arguments(const nb::object& function, nb::handle key) {
  const nb::object arguments = nb::steal(PyTuple_GetSlice(key.ptr(), 1, PyTuple_Size(key.ptr())));
  PyObject* result = PyObject_Call(function.ptr(), arguments.ptr(), nullptr);
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

// A tensor that a call makes: make(*arguments, **named).
struct Output {
  nb::object make, arguments, named;

  nb::object operator()() const {
    PyObject* made = PyObject_Call(make.ptr(), arguments.ptr(), named.ptr());
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
  }
};
using OutputTuple = std::tuple<nb::object, nb::object, nb::object>;

// A forward's pointers, by the names that Launch takes.
enum Slot : std::size_t {
  kQ,
  kK,
  kV,
  kCuSeqlensQ,
  kCuSeqlensK,
  kSequsedQ,
  kSequsedK,
  kBlockTable,
  kLeftpadK,
  kSlopes,
  kSinks,
  kKDescale,
  kVDescale,
  kSlots
};
constexpr std::array<std::string_view, kSlots> kNames = {
    "q",         "k",         "v",           "cu_seqlens_q", "cu_seqlens_k",
    "seqused_q", "seqused_k", "block_table", "leftpad_k",    "alibi_slopes",
    "sinks",     "k_descale", "v_descale"};

constexpr std::size_t kSteps = 2;

// What launches write beside outputs: a tensor, and where it lies.
struct Memory {
  nb::object tensor;
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Of each device the memory that the last launch on its default stream wrote to, for the next one
// there: kernels of one stream run one after the other, so that no two have it at once. Who
// launches takes it away, and another thread meanwhile finds none. Other streams are left out: a
// number that one of them had may be another's, and graphs record there.
class SpareMemory {
 public:
  // Empty where there is none of so many bytes.
  Memory take(int device, std::size_t bytes) {
    Memory* const spare = of(device);
    return spare != nullptr && spare->bytes >= bytes ? std::exchange(*spare, {}) : Memory{};
  }
  void put(int device, Memory memory) {
    Memory* const spare = of(device);
    if (spare != nullptr && memory.bytes <= kMost && memory.bytes > spare->bytes) {
      std::swap(*spare, memory);
    }
  }
  void clear() { spares_.fill({}); }

 private:
  static constexpr std::size_t kMost = std::size_t{16} << 20U;
  static constexpr int kHost = -1, kDevices = 16;

  Memory* of(int device) {
    const int at = device - kHost;
    return at >= 0 && at <= kDevices ? &spares_[static_cast<std::size_t>(at)] : nullptr;
  }

  std::array<Memory, kDevices + 1> spares_;
};

// A plan's forward for calls whose tensors are like those that it was planned for: makes outputs
// and workspace, launches, and gives back what the door does.
class Launch {
 public:
  // places: which of the key's entries a pointer is, by name. constants: pointers that are the same
  // in every call, of what `owners` holds. steps: elements from a row of block_table to the next,
  // from a batch of alibi_slopes, from a batch and a head of descales. o, lse, workspace: (make,
  // arguments, named), lse and workspace also None. returns: "o", or of a tuple its parts, o, l for
  // lse, n for None, e.g. "(ol)". device: of a GPU, with current_device() and stream(device); -1: a
  // processor. capturing: None, or whether a graph records. prepare: None, or called with the key's
  // arguments before each launch; it makes the tensors of the names `prepared`, a tuple of as many,
  // or gives None: the call is to be made in full.
  Launch(nb::object plan, const std::map<std::string, int>& places,
         const std::map<std::string, std::uintptr_t>& constants,
         const std::map<std::string, std::vector<std::int64_t>>& steps, const OutputTuple& o,
         const nb::object& lse, const nb::object& workspace, std::string returns, nb::object owners,
         int device, nb::object current_device, nb::object stream, nb::object capturing,
         nb::object prepare, const std::vector<std::string>& prepared)
      : owner_(std::move(plan)),
        plan_(nb::cast<const Plan*>(owner_)),
        has_whole_device_(plan_->ready.plan != nullptr && plan_->ready.plan->has_whole_device()),
        o_(output(o)),
        lse_(optional_output(lse)),
        workspace_(optional_output(workspace)),
        returns_(std::move(returns)),
        owners_(std::move(owners)),
        device_(device),
        current_device_(std::move(current_device)),
        stream_(std::move(stream)),
        capturing_(std::move(capturing)),
        prepare_(std::move(prepare)) {
    places_.fill(-1);
    for (const auto& [name, place] : places) {
      if (place < 0 || place >= kMostArguments) throw nb::value_error("no place of a key");
      places_[slot(name)] = place;
    }
    for (const auto& [name, address] : constants) {
      constants_[slot(name)] =
          reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
    }
    for (const auto& [name, of] : steps) {
      std::copy_n(of.begin(), std::min(of.size(), kSteps), steps_[slot(name)].begin());
    }
    for (const std::string& name : prepared) prepared_.push_back(slot(name));
  }

  nb::object plan() const { return owner_; }

  // None where the call is to be made in full: another GPU, or another part of it, is current, a
  // graph records, which would outlive what the owners hold, or prepare() says so.
  nb::object run(const TensorReader& reader, const Given& given, nb::handle key,
                 SpareMemory& spares) const {
    if (device_ >= 0 &&
        (PyLong_AsLong(call(current_device_).ptr()) != device_ || !fits_context(*plan_))) {
      return nb::none();
    }
    if (!capturing_.is_none() && is_true(call(capturing_))) return nb::none();
    nb::object o = o_();
    nb::object lse = lse_.make.is_valid() ? lse_() : nb::object();
    std::array<void*, kSlots> at = slots_of(given);
    nb::object prepared;  // lives until all is queued
    if (!prepare_.is_none()) {
      prepared = call_with_arguments(prepare_, key);
      if (prepared.is_none()) return nb::none();
      read_prepared(reader, prepared, at);
    }
    ForwardArgs arguments = pointers_of(at);
    arguments.o = data(reader, o);
    arguments.lse = static_cast<float*>(data(reader, lse));
    Queue queue;
    if (device_ >= 0) {
      queue.stream = PyLong_AsVoidPtr(call(stream_, nb::int_(device_)).ptr());
    }
    const bool shares = has_whole_device_ && queue.stream == nullptr;
    Memory memory = workspace(reader, shares ? &spares : nullptr);
    arguments.workspace = memory.data;
    {
      const nb::gil_scoped_release others_run;
      forward(*plan_, arguments, queue);
    }
    if (shares) spares.put(device_, std::move(memory));
    return given_back(std::move(o), std::move(lse));
  }

 private:
  static Output output(const OutputTuple& parts) {
    return {std::get<0>(parts), std::get<1>(parts), std::get<2>(parts)};
  }
  static Output optional_output(const nb::object& parts) {
    return parts.is_none() ? Output{} : output(nb::cast<OutputTuple>(parts));
  }

  static std::size_t slot(std::string_view name) {
    const auto found = std::find(kNames.begin(), kNames.end(), name);
    if (found == kNames.end()) throw nb::value_error("no pointer of a forward");
    return static_cast<std::size_t>(found - kNames.begin());
  }

  Memory workspace(const TensorReader& reader, SpareMemory* spares) const {
    if (!workspace_.make.is_valid()) return {};
    if (spares != nullptr) {
      Memory spare = spares->take(device_, plan_->workspace_bytes);
      if (spare.tensor.is_valid()) return spare;
    }
    nb::object tensor = workspace_();
    void* const at = data(reader, tensor);
    return {std::move(tensor), at, plan_->workspace_bytes};
  }

  std::array<void*, kSlots> slots_of(const Given& given) const {
    std::array<void*, kSlots> at = constants_;
    for (std::size_t i = 0; i < kSlots; ++i) {
      if (places_[i] >= 0) at[i] = given.pointers[static_cast<std::size_t>(places_[i])];
    }
    return at;
  }

  void read_prepared(const TensorReader& reader, const nb::object& made,
                     std::array<void*, kSlots>& at) const {
    if (!PyTuple_Check(made.ptr()) ||
        PyTuple_Size(made.ptr()) != static_cast<Py_ssize_t>(prepared_.size())) {
      throw nb::type_error("prepare() gave no tuple of the tensors that it was to make");
    }
    Py_ssize_t i = 0;
    for (const std::size_t slot : prepared_) {
      at[slot] = data(reader, PyTuple_GetItem(made.ptr(), i++));
    }
  }

  ForwardArgs pointers_of(const std::array<void*, kSlots>& at) const {
    const auto integers = [&](Slot slot) { return static_cast<const std::int32_t*>(at[slot]); };
    return {.q = at[kQ],
            .k = at[kK],
            .v = at[kV],
            .sequences = {.cu_seqlens_q = integers(kCuSeqlensQ),
                          .cu_seqlens_k = integers(kCuSeqlensK),
                          .seqused_q = integers(kSequsedQ),
                          .seqused_k = integers(kSequsedK),
                          .block_table = integers(kBlockTable),
                          .table_row = steps_[kBlockTable][0],
                          .leftpad_k = integers(kLeftpadK)},
            .logits = {.alibi_slopes = static_cast<const float*>(at[kSlopes]),
                       .slopes_of_batch = steps_[kSlopes][0],
                       .sinks = static_cast<const float*>(at[kSinks])},
            .descales = {.k = descale(at, kKDescale), .v = descale(at, kVDescale)}};
  }

  Descale descale(const std::array<void*, kSlots>& at, Slot slot) const {
    const auto& [batch, head] = steps_[slot];
    return {.values = static_cast<const float*>(at[slot]), .batch = batch, .head = head};
  }

  static void* data(const TensorReader& reader, nb::handle tensor) {
    if (!tensor.is_valid()) return nullptr;
    const auto read = reader.read(tensor);
    return read ? read->data : reader.read_attributes(tensor).data;
  }

  nb::object given_back(nb::object o, nb::object lse) const {
    if (returns_ == "o") return o;
    if (returns_ == "(ol)") return nb::make_tuple(std::move(o), std::move(lse));
    if (returns_ == "(on)") return nb::make_tuple(std::move(o), nb::none());
    return nb::make_tuple(std::move(o), std::move(lse), nb::none());
  }

  nb::object owner_;
  const Plan* plan_;
  bool has_whole_device_;
  Output o_, lse_, workspace_;
  std::string returns_;
  nb::object owners_;
  int device_;
  nb::object current_device_, stream_, capturing_, prepare_;
  std::vector<std::size_t> prepared_;
  std::array<int, kSlots> places_{};
  std::array<void*, kSlots> constants_{};
  std::array<std::array<std::int64_t, kSteps>, kSlots> steps_{};
};

// Calls of the doors that are made again. A key is a tuple of the door's name and all its
// arguments. Of tensors their shapes, strides, types and devices count, of numbers, texts, tuples,
// True, False and None their values; what has anything else is not kept.
class Again {
 public:
  // table, fields: of TensorReader. kinds: exact types of tensors. watchers: functions one of which
  // answers true where somebody looks on, at_rest: (module, attribute, its value while nobody
  // does); such a call is not made here. learns(): may tensors require gradients? globals:
  // functions whose whole numbers a call depends on too; host_globals: those of calls on a
  // processor.
  Again(const nb::object& table, nb::object fields, std::vector<nb::object> kinds,
        std::vector<nb::object> watchers,
        std::vector<std::tuple<nb::object, nb::object, nb::object>> at_rest, nb::object learns,
        std::vector<nb::object> globals, std::vector<nb::object> host_globals)
      : reader_(table, std::move(fields)),
        kinds_(std::move(kinds)),
        watchers_(std::move(watchers)),
        at_rest_(std::move(at_rest)),
        learns_(std::move(learns)),
        globals_(std::move(globals)),
        host_globals_(std::move(host_globals)),
        requires_grad_(nb::steal(PyUnicode_InternFromString("requires_grad"))) {}

  // What the call gives back, or None: it has to be made in full.
  nb::object recall(nb::handle key) {
    Given given;
    if (!reads(key, given)) return nb::none();
    const auto found = entries_.find(given.words());
    if (found == entries_.end()) return nb::none();
    const std::shared_ptr<const Entry> entry = found->second;  // another thread may empty the map
    if (entry->launch != nullptr) return entry->launch->run(reader_, given, key, spares_);
    return call_with_arguments(entry->owner, key);
  }

  // A Launch, or a function of the arguments. tensors: the key's places of those that it takes as
  // they come; a call with others, whose values may mean something, is not kept. Is it kept?
  bool keep(nb::handle key, nb::object made, const std::vector<int>& tensors) {
    Given given;
    if (!reads(key, given)) return false;
    for (std::size_t i = 0; i < given.pointers.size(); ++i) {
      const bool taken = std::find(tensors.begin(), tensors.end(), i) != tensors.end();
      if (given.pointers[i] != nullptr && !taken) return false;
    }
    auto entry = std::make_shared<Entry>();
    if (nb::isinstance<Launch>(made)) entry->launch = nb::cast<const Launch*>(made);
    entry->owner = std::move(made);
    if (entries_.size() >= kMost) entries_.clear();
    const auto words = given.words();
    entries_.insert_or_assign({words.begin(), words.end()}, std::move(entry));
    return true;
  }

  // What is kept for a key, or None.
  nb::object kept(nb::handle key) const {
    Given given;
    if (!reads(key, given)) return nb::none();
    const auto found = entries_.find(given.words());
    return found == entries_.end() ? nb::none() : found->second->owner;
  }

  std::size_t size() const { return entries_.size(); }
  void clear() {
    entries_.clear();
    spares_.clear();
  }

 private:
  struct Entry {
    nb::object owner;
    const Launch* launch = nullptr;  // of the owner; null: a function
  };
  static constexpr std::size_t kMost = 1024;
  using Map = std::unordered_map<std::vector<std::uint64_t>, std::shared_ptr<const Entry>,
                                 WordsHash, WordsEqual>;

  bool reads(nb::handle key, Given& given) const {
    if (is_looked_at()) return false;
    const Py_ssize_t count = PyTuple_Size(key.ptr());
    if (count < 0) throw nb::python_error();
    if (count > kMostArguments) return false;
    const bool learns = is_true(call(learns_));
    for (Py_ssize_t i = 0; i < count; ++i) {
      const nb::handle argument = PyTuple_GetItem(key.ptr(), i);
      if (!adds(argument, learns, given.pointers[static_cast<std::size_t>(i)], given)) return false;
    }
    for (const nb::object& value : globals_) given.add(whole(call(value)));
    if (given.on_host) {
      for (const nb::object& value : host_globals_) given.add(whole(call(value)));
    }
    return given.fits();
  }

  bool is_looked_at() const {
    for (const nb::object& watcher : watchers_) {
      if (is_true(call(watcher))) return true;
    }
    for (const auto& [module, attribute, value] : at_rest_) {
      const nb::object now = nb::steal(PyObject_GetAttr(module.ptr(), attribute.ptr()));
      if (!now.is_valid()) throw nb::python_error();
      if (!now.is(value)) return true;
    }
    return false;
  }

  bool adds(nb::handle argument, bool learns, void*& pointer, Given& given) const {
    if (argument.is_none()) {
      given.add(Kind::none);
    } else if (is_tensor(argument)) {
      return adds_tensor(argument, learns, pointer, given);
    } else if (PyTuple_CheckExact(argument.ptr())) {
      const Py_ssize_t count = PyTuple_Size(argument.ptr());
      given.add(Kind::tuple);
      given.add(static_cast<std::uint64_t>(count));
      for (Py_ssize_t i = 0; i < count; ++i) {
        if (!adds_value(PyTuple_GetItem(argument.ptr(), i), given)) return false;
      }
    } else {
      return adds_value(argument, given);
    }
    return true;
  }

  static bool adds_value(nb::handle value, Given& given) {
    PyObject* const object = value.ptr();
    if (object == Py_None) {
      given.add(Kind::none);
    } else if (object == Py_True || object == Py_False) {
      given.add(object == Py_True ? Kind::yes : Kind::no);
    } else if (PyLong_CheckExact(object)) {
      int overflow = 0;
      const std::int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
      given.add(Kind::integer);
      given.add(static_cast<std::uint64_t>(number));
      return overflow == 0;
    } else if (PyFloat_CheckExact(object)) {
      given.add(Kind::real);
      given.add(std::bit_cast<std::uint64_t>(PyFloat_AsDouble(object)));
    } else if (PyUnicode_CheckExact(object)) {
      return adds_text(object, given);
    } else {
      return false;
    }
    return true;
  }

  static bool adds_text(PyObject* object, Given& given) {
    Py_ssize_t bytes = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(object, &bytes);
    if (text == nullptr) {  // halves of characters
      PyErr_Clear();
      return false;
    }
    given.add(Kind::text);
    given.add(static_cast<std::uint64_t>(bytes));
    for (Py_ssize_t i = 0; i < bytes; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, text + i, static_cast<std::size_t>(std::min<Py_ssize_t>(8, bytes - i)));
      given.add(word);
    }
    return true;
  }

  bool is_tensor(nb::handle argument) const {
    const auto* const type = reinterpret_cast<const PyObject*>(Py_TYPE(argument.ptr()));
    return std::any_of(kinds_.begin(), kinds_.end(),
                       [&](const nb::object& kind) { return kind.ptr() == type; });
  }

  bool adds_tensor(nb::handle tensor, bool learns, void*& pointer, Given& given) const {
    auto read = reader_.read(tensor);
    if (!read && !reader_.has_table()) read = reader_.read_attributes(tensor);
    if (!read || read->data == nullptr || read->fields.dimensions > 4) return false;
    if (learns && is_true(nb::steal(PyObject_GetAttr(tensor.ptr(), requires_grad_.ptr())))) {
      return false;
    }
    const Fields& fields = read->fields;
    const auto word = [](std::int32_t high, std::int32_t low) {
      return static_cast<std::uint64_t>(static_cast<std::uint32_t>(high)) << 32U |
             static_cast<std::uint32_t>(low);
    };
    given.add(Kind::tensor);
    given.add(word(fields.type, fields.dimensions));
    given.add(word(fields.device_type, fields.device));
    for (std::size_t i = 0; i < static_cast<std::size_t>(fields.dimensions); ++i) {
      given.add(static_cast<std::uint64_t>(fields.shape[i]));
      given.add(static_cast<std::uint64_t>(fields.strides[i]));
    }
    given.on_host = given.on_host || fields.device_type != kCuda;
    pointer = read->data;
    return true;
  }

  static std::uint64_t whole(const nb::object& value) {
    return static_cast<std::uint64_t>(PyLong_AsLongLong(value.ptr()));
  }

  TensorReader reader_;
  std::vector<nb::object> kinds_, watchers_;
  std::vector<std::tuple<nb::object, nb::object, nb::object>> at_rest_;
  nb::object learns_;
  std::vector<nb::object> globals_, host_globals_;
  nb::object requires_grad_;
  Map entries_;
  SpareMemory spares_;
};

}  // namespace

void bind_torch_again(nb::module_& core) {
  nb::class_<Launch>(core, "Launch",
                     "A plan's forward on tensors like those that it was planned for.")
      .def(nb::init<nb::object, const std::map<std::string, int>&,
                    const std::map<std::string, std::uintptr_t>&,
                    const std::map<std::string, std::vector<std::int64_t>>&, const OutputTuple&,
                    const nb::object&, const nb::object&, std::string, nb::object, int, nb::object,
                    nb::object, nb::object, nb::object, const std::vector<std::string>&>(),
           "plan"_a, "places"_a, "constants"_a, "steps"_a, "o"_a, "lse"_a.none(),
           "workspace"_a.none(), "returns"_a, "owners"_a.none(), "device"_a,
           "current_device"_a.none(), "stream"_a.none(), "capturing"_a.none(), "prepare"_a.none(),
           "prepared"_a)
      .def_prop_ro("plan", &Launch::plan);
  nb::class_<Again>(core, "Again", "Calls on PyTorch's tensors that are made again.")
      .def(nb::init<const nb::object&, nb::object, std::vector<nb::object>, std::vector<nb::object>,
                    std::vector<std::tuple<nb::object, nb::object, nb::object>>, nb::object,
                    std::vector<nb::object>, std::vector<nb::object>>(),
           "table"_a.none(), "fields"_a, "kinds"_a, "watchers"_a, "at_rest"_a, "learns"_a,
           "globals"_a, "host_globals"_a)
      .def("recall", &Again::recall, "What the call gives back, or None: it is to be made in full.")
      .def("keep", &Again::keep, "key"_a, "made"_a, "tensors"_a)
      .def("kept", &Again::kept, "What is kept for a key, or None.")
      .def("clear", &Again::clear)
      .def("__len__", &Again::size);
}

}  // namespace dfa::python
