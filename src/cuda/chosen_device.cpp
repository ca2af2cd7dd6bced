#include "cuda/chosen_device.h"

#include <charconv>
#include <string>

#include "base/env.h"

namespace dfa::cuda {

const gpu::Device& chosen_device() {
  const std::string text = env("DFA_CUDA_DEVICE");
  if (text == "current") return gpu::Device::get(gpu::Device::current_index());
  int index = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc{} || end != text.data() + text.size() || index < 0) {
    throw InvalidArgument("DFA_CUDA_DEVICE='" + text +
                          "': accepted are current and a device number from 0 on");
  }
  return gpu::Device::get(index);
}

Limits limits_of(const gpu::Device& device) {
  Limits limits = gpu_limits(device.facts().capability);
  limits.sm_count = device.usable_sms();
  return limits;
}

}  // namespace dfa::cuda
