#pragma once

#include <string>
#include <vector>

#include "govern/tune.h"
#include "profile/row.h"

namespace dfa::govern {

// What profiles/*.json hold, embedded in the program: rows by the name of a kind of card.
const std::vector<profile::Row>& shipped_rows();

// From shipped rows on a card of this name, by this version's kernels.
KnownPoints shipped_points(const Problem& problem, const PointOptions& options);

}  // namespace dfa::govern
