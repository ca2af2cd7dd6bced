#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sensors/gpu/card.h"
#include "sensors/nvml/library.h"

namespace dfa::nvml {

using sensors::ComputeProcesses;
using sensors::Value;
using DeviceFacts = sensors::CardFacts;
using DeviceSettings = sensors::CardSettings;

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
  Value<std::vector<double>> sm_clocks_hz() const;  // as GpuCard has it

  // One of NVML's numbered fields as a number. scope: of which part of the card, where a field has
  // parts.
  Value<double> field(std::uint32_t id, std::uint32_t scope = 0) const;
  // Yes where a link to another card is up.
  Verdict has_nvlink() const;
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
