#pragma once

#include <string>
#include <vector>

#include "profile/row.h"

namespace dfa::profile {

// The rows that no other beats: none is at least as good in time, energy and error and better in
// one. A row without joules is only beaten by one without, or by a faster one with no more error.
// A row at a locked clock beats those of the same clock alone, as that clock may not be lent to
// whoever chooses; a row at the card's own clock beats any. By time, fastest first.
std::vector<Row> frontier(const std::vector<Row>& rows);

// Why a row may no longer hold on this machine; empty: it holds.
std::string stale_reason(const Row& row, const Machine& machine);

}  // namespace dfa::profile
