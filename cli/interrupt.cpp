#include "cli/interrupt.h"

#include <fcntl.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace dfa::cli {
namespace {

std::atomic<bool> asked{false};

// After a terminal hung up, what is said to it fails; the result still has to be written.
void leave_dead_terminal() {
  const int error = errno;
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    termios ignored{};
    if (::tcgetattr(fd, &ignored) == 0 || errno != EIO) continue;
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0) ::dup2(nowhere, fd);
    if (nowhere >= 0) ::close(nowhere);
  }
  errno = error;
}

void hear(int number) {
  struct sigaction before {};
  ::sigaction(number, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = [](int heard) {
    asked = true;
    if (heard == SIGHUP) leave_dead_terminal();
  };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(number, &action, nullptr);
}

}  // namespace

void end_gently() {
  hear(SIGINT);
  hear(SIGTERM);
  hear(SIGHUP);
}

bool interrupted() { return asked; }

}  // namespace dfa::cli
