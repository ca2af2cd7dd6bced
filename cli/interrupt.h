#pragma once

namespace dfa::cli {

// From now on the first Ctrl-C, SIGTERM (of `timeout`, say) or SIGHUP (of a terminal that went
// away) only makes interrupted() true, so that a command ends in its own time and what was measured
// is written; the second ends the program. One that was ignored when the program began stays so: a
// shell starts `dfa … &` of a script like that, lest a Ctrl-C meant for the foreground end it.
void end_gently();
bool interrupted();

}  // namespace dfa::cli
