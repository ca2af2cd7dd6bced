#pragma once

#include "sensors/gpu/card.h"

namespace dfa::nvml {

// NVML as a library that tells of cards.
sensors::Value<std::shared_ptr<const sensors::GpuSource>> open_source();

}  // namespace dfa::nvml
