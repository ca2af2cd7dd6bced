#pragma once

#include <memory>

#include "contract/diagnostics.h"
#include "gpu/device.h"

namespace dfa::cuda {

std::unique_ptr<RowsCheck> rows_check(const Problem& problem, int rows, const gpu::Device& device);

}  // namespace dfa::cuda
