#pragma once

#include <memory>

#include "contract/clock.h"
#include "contract/meter.h"
#include "sensors/nvml/device.h"

namespace dfa::nvml {

// The card's energy counter: joules counted since the meter was opened. The driver's counter starts
// anew with the driver, and what was used around that is not known: such a reading is none, and one
// of Reading::breaks. So is one where the counter rose faster than the power limit allows, where it
// stood still, and one after reads that failed for so long that it may have started anew meanwhile.
// May be read from several threads at once.
std::unique_ptr<Meter> make_energy_meter(const Device& device, const Clock& clock);

}  // namespace dfa::nvml
