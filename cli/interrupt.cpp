#include "cli/interrupt.h"

#include <signal.h>

#include <atomic>

namespace dfa::cli {
namespace {

std::atomic<bool> asked{false};

void hear(int number) {
  struct sigaction before {};
  ::sigaction(number, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = [](int) { asked = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(number, &action, nullptr);
}

}  // namespace

void end_gently() {
  hear(SIGINT);
  hear(SIGTERM);
}

bool interrupted() { return asked; }

}  // namespace dfa::cli
