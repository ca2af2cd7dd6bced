#pragma once

namespace dfa::cli {

// From now on the first Ctrl-C or SIGTERM (of `timeout`, say) only makes interrupted() true, so that a
// command ends in its own time and what was measured is written; the second ends the program.
void end_gently();
bool interrupted();

}  // namespace dfa::cli
