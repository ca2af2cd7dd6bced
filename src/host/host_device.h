#pragma once

#include "contract/device.h"

namespace dfa {

// The host itself: its memory, calls that are done when they return, its monotonic clock.
const Device& host_device();

}  // namespace dfa
