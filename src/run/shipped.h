#pragma once

#include <string>
#include <vector>

#include "profile/row.h"
#include "run/tune.h"

namespace dfa::run {

// What profiles/*.json hold, embedded in the program: rows by the name of a kind of card.
const std::vector<profile::Row>& shipped_rows();

// From shipped rows on a card of this name, by this version's kernels.
KnownPoints shipped_points(const Problem& problem, const PointOptions& options);

}  // namespace dfa::run
