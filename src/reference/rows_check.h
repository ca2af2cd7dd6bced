#pragma once

#include <memory>

#include "contract/diagnostics.h"

namespace dfa {

// Rows of one head at a time, drawn with it, in fp64: for memory of the host. Throws
// InvalidArgument for rows below 1 or above 65536, Unsupported for packed sequences.
std::unique_ptr<RowsCheck> host_rows_check(const Problem& problem, int rows);

}  // namespace dfa
