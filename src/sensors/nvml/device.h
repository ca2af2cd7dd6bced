#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sensors/nvml/library.h"

namespace dfa::nvml {

// What a call gave, or why it gave nothing.
template <typename T>
struct Value {
  std::optional<T> value;
  Verdict status;
};

// What does not change while a program runs. Empty where the library does not tell.
struct DeviceFacts {
  std::string name;          // "NVIDIA H200"
  std::string uuid;          // "GPU-…"
  std::string pci_id;        // "0000:3b:00.0", lower case
  std::string driver;        // "580.159.04"
  std::optional<int> index;  // in NVML's order, which is neither CUDA's nor that of a choice
  std::optional<int> minor;  // of its file, /dev/nvidia0
};

// What may change while a program runs. Empty where the library does not tell.
struct DeviceSettings {
  std::optional<double> power_limit_w;
  std::optional<bool> persistence;
  bool mig = false;  // split into instances: power and energy are of the whole card
};

// Programs with a compute context on the card.
struct ComputeProcesses {
  std::vector<std::uint32_t> pids;
  bool own = false;  // this process is among them

  // How many belong to others. A container may show this process under a number that it does not
  // know itself: `own_context` says that it has a context, and one of the list is taken for it.
  int foreign(bool own_context) const;
};

// One card. Cheap to copy; keeps the library loaded.
class Device {
 public:
  Device(std::shared_ptr<const Library> library, Handle handle);

  const DeviceFacts& facts() const { return facts_; }
  const Api& api() const { return library_->api(); }
  const Library& library() const { return *library_; }
  Handle handle() const { return handle_; }

  DeviceSettings settings() const;  // read anew
  std::optional<double> power_limit_w() const;

  // One of NVML's numbered fields as a number.
  Value<double> field(std::uint32_t id) const;
  Value<ComputeProcesses> compute_processes() const;

 private:
  std::shared_ptr<const Library> library_;
  Handle handle_;
  DeviceFacts facts_;
};

// The card of a PCI bus id as CUDA tells it ("0000:3b:00.0") or of a UUID ("GPU-…"). Never by
// index: CUDA and NVML count differently. A reason for a MIG instance ("MIG-…"): NVML measures
// whole cards only.
Value<Device> find_device(const std::shared_ptr<const Library>& library, const std::string& id);

// The card at a place in NVML's order; a reason where it is counted but does not answer.
Value<Device> device_at(const std::shared_ptr<const Library>& library, int index);

// Every card that NVML counts, in its order: each of them, or why it does not answer.
Value<std::vector<Value<Device>>> list_devices(const std::shared_ptr<const Library>& library);

}  // namespace dfa::nvml
