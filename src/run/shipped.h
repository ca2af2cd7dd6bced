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

// From a file that dfa tune made, which must be there, or "shipped".
KnownPoints points_from(const std::string& profile, const Problem& problem,
                        const PointOptions& options);

}  // namespace dfa::run
