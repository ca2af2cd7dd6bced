#pragma once

#include <string>

#include "monitor/records.h"

namespace dfa::cli {

// What `dfa monitor` shows of one look: blocks of rows or a table for a terminal, or lines for a
// file. Of several cards, or where there is a budget, their sum stands below them.
std::string to_blocks(const monitor::Look& look);
std::string to_table(const monitor::Look& look);  // a row a card: for many
std::string to_lines(const monitor::Look& look);

// So many rows a terminal of that many columns needs for a text.
int rows_of(const std::string& text, int columns);

}  // namespace dfa::cli
