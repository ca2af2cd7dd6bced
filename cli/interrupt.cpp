#include "cli/interrupt.h"

#include <signal.h>

#include <atomic>

namespace dfa::cli {
namespace {

std::atomic<bool> asked{false};

}  // namespace

void end_gently() {
  struct sigaction action {};
  action.sa_handler = [](int) { asked = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return asked; }

}  // namespace dfa::cli
