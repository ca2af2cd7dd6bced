#include "sensors/nvml/device.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace dfa::nvml {
namespace {

constexpr int kInsufficientSize = 7;

std::string text_of(const Function<Handle, char*, unsigned>& function, Handle handle) {
  std::array<char, 97> text{};
  return function(handle, text.data(), text.size() - 1) ? std::string(text.data()) : std::string();
}

// NVML writes the domain with eight digits, CUDA with four.
std::string pci_id_of(const Api& api, Handle handle) {
  PciInfo info{};
  if (!api.pci_info(handle, &info)) return {};
  info.bus_id[sizeof info.bus_id - 1] = '\0';
  std::string id = info.bus_id;
  if (id.size() == 16 && id.starts_with("0000")) id = id.substr(4);
  std::transform(id.begin(), id.end(), id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return id;
}

std::optional<int> number_of(const Function<Handle, unsigned*>& function, Handle handle) {
  unsigned number = 0;
  return function(handle, &number) ? std::optional(static_cast<int>(number)) : std::nullopt;
}

Value<double> number_of(const FieldValue& field) {
  switch (field.type) {
    case ValueType::f64: return {field.value.f64, {}};
    case ValueType::u32: return {field.value.u32, {}};
    case ValueType::unsigned_long:
    case ValueType::u64: return {static_cast<double>(field.value.u64), {}};
    case ValueType::i64: return {static_cast<double>(field.value.i64), {}};
    case ValueType::i32: return {field.value.i32, {}};
    case ValueType::u16: return {field.value.u16, {}};
  }
  return {std::nullopt, Verdict::no("NVML field " + std::to_string(field.field) +
                                    " has an unknown type of value")};
}

}  // namespace

Device::Device(std::shared_ptr<const Library> library, Handle handle)
    : library_(std::move(library)), handle_(handle) {
  const Api& nvml = api();
  facts_.name = text_of(nvml.name, handle_);
  facts_.uuid = text_of(nvml.uuid, handle_);
  facts_.pci_id = pci_id_of(nvml, handle_);
  facts_.driver = library_->driver_version();
  facts_.index = number_of(nvml.index, handle_);
  facts_.minor = number_of(nvml.minor, handle_);
}

std::optional<double> Device::power_limit_w() const {
  unsigned milliwatts = 0;
  return api().power_limit(handle_, &milliwatts) ? std::optional(milliwatts * 1e-3) : std::nullopt;
}

DeviceSettings Device::settings() const {
  const Api& nvml = api();
  DeviceSettings settings;
  settings.power_limit_w = power_limit_w();
  int persistence = 0;
  if (nvml.persistence(handle_, &persistence)) settings.persistence = persistence != 0;
  unsigned mig_now = 0, mig_after_reset = 0;
  settings.mig = nvml.mig_mode(handle_, &mig_now, &mig_after_reset) && mig_now != 0;
  return settings;
}

// Beside the memory's highest clock, which it has while kernels run.
Value<std::vector<double>> Device::sm_clocks_hz() const {
  std::array<unsigned, 512> memory{}, mhz{};
  unsigned count = memory.size();
  const Verdict told = api().memory_clocks(handle_, &count, memory.data());
  if (!told || count == 0) return {std::nullopt, told};
  const unsigned highest = *std::max_element(memory.begin(), memory.begin() + count);
  count = mhz.size();
  if (const Verdict got = api().sm_clocks(handle_, highest, &count, mhz.data()); !got) {
    return {std::nullopt, got};
  }
  std::sort(mhz.begin(), mhz.begin() + count);
  std::vector<double> hz;
  for (unsigned i = 0; i < count; ++i) hz.push_back(1e6 * mhz[i]);
  return {hz, {}};
}

Value<double> Device::field(std::uint32_t id, std::uint32_t scope) const {
  FieldValue field{};
  field.field = id;
  field.scope = scope;
  Verdict status = api().field_values(handle_, 1, &field);
  if (status && field.status != 0) {
    status = Verdict::no("NVML field " + std::to_string(id) + ": " + status_text(field.status));
  }
  if (!status) return {std::nullopt, status};
  return number_of(field);
}

Verdict Device::has_nvlink() const {
  constexpr unsigned kMostLinks = 64;  // a card of today has 18; it refuses numbers beyond its own
  unsigned links = 0;
  while (links < kMostLinks) {
    int active = 0;
    const Verdict there = api().nvlink_state(handle_, links, &active);
    if (!there) {
      if (links == 0) return Verdict::no("NVLink: " + there.reason);
      break;
    }
    if (active != 0) return Verdict::yes();
    ++links;
  }
  return Verdict::no("no NVLink: none of the card's " + std::to_string(links) + " links is up");
}

Value<ComputeProcesses> Device::compute_processes() const {
  const auto& list = api().compute_processes;
  std::vector<ProcessInfo> infos;
  unsigned count = 0;
  int status = kInsufficientSize;
  // Processes come and go between the call that counts them and the one that lists them.
  for (int attempt = 0; attempt < 5 && status == kInsufficientSize; ++attempt) {
    infos.resize(count + 8);
    count = static_cast<unsigned>(infos.size());
    if (list.address == nullptr) return {std::nullopt, list(handle_, &count, infos.data())};
    status = list.address(handle_, &count, infos.data());
  }
  if (status != 0) {
    return {std::nullopt, Verdict::no(std::string(list.name) + ": " + status_text(status))};
  }
  ComputeProcesses processes;
  const auto own = static_cast<std::uint32_t>(::getpid());
  for (unsigned i = 0; i < count; ++i) {
    processes.pids.push_back(infos[i].pid);
    processes.own = processes.own || infos[i].pid == own;
  }
  return {processes, {}};
}

Value<Device> find_device(const std::shared_ptr<const Library>& library, const std::string& id) {
  if (id.starts_with("MIG-")) {
    return {std::nullopt, Verdict::no("'" + id +
                                      "' is a MIG instance; NVML measures the power "
                                      "and energy of whole cards only")};
  }
  const auto& by_id = id.starts_with("GPU-") ? library->api().by_uuid : library->api().by_pci_id;
  Handle handle = nullptr;
  const Verdict found = by_id(id.c_str(), &handle);
  if (!found) return {std::nullopt, Verdict::no("GPU '" + id + "': " + found.reason)};
  return {Device(library, handle), {}};
}

Value<Device> device_at(const std::shared_ptr<const Library>& library, int index) {
  Handle handle = nullptr;
  const Verdict found = library->api().by_index(static_cast<unsigned>(index), &handle);
  if (!found) return {std::nullopt, found};
  return {Device(library, handle), {}};
}

Value<std::vector<Value<Device>>> list_devices(const std::shared_ptr<const Library>& library) {
  unsigned count = 0;
  const Verdict counted = library->api().count(&count);
  if (!counted) return {std::nullopt, counted};
  std::vector<Value<Device>> devices;
  for (unsigned i = 0; i < count; ++i) devices.push_back(device_at(library, static_cast<int>(i)));
  return {std::move(devices), {}};
}

}  // namespace dfa::nvml
