#pragma once

#include <string>
#include <vector>

#include "govern/points.h"
#include "profile/row.h"

namespace dfa::govern {

// What profiles/*.json hold, embedded in the program: rows by the name of a kind of card.
const std::vector<profile::Row>& shipped_rows();

// Candidates from shipped rows of this problem on a card of this name, by this version's kernels.
// `told`: of which card, driver and day they are, or why there are none.
std::vector<Candidate> shipped_points(const Problem& problem, const std::string& backend,
                                      bool less_exact, std::string& told);

}  // namespace dfa::govern
