// tests/support/watched_child.cpp: a pseudo terminal, and a process in between.
#include "support/watched_child.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace smp {
namespace {

/// Reads until nobody can write any more; a terminal says that with an error.
std::string read_all_of(int descriptor) {
  std::string text;
  char part[4096];
  for (;;) {
    const auto count = ::read(descriptor, part, sizeof part);
    if (count <= 0) return text;
    text.append(part, static_cast<std::size_t>(count));
  }
}

/// Runs the work, with `errors` as stderr; in a child process.
[[noreturn]] void work_with(int errors, const std::function<void()>& work) {
  ::dup2(errors, STDERR_FILENO);
  ::unsetenv("SMP_PROGRESS");
  ::unsetenv("COLUMNS");
  ::setenv("TERM", "xterm", 1);
  work();
  ::_exit(0);
}

/// As a launcher does: passes on what its rank writes to a pipe; in a child process.
[[noreturn]] void launch(int errors, const std::function<void()>& work) {
  ::dup2(errors, STDERR_FILENO);
  int pipe[2];
  if (::pipe(pipe) != 0) ::_exit(1);
  const pid_t rank = ::fork();
  if (rank == 0) {
    ::close(pipe[0]);
    ::setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    work_with(pipe[1], work);
  }
  ::close(pipe[1]);
  const auto text = read_all_of(pipe[0]);
  ::waitpid(rank, nullptr, 0);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(0);
}

}  // namespace

std::string seen_by(Watcher watcher, const std::function<void()>& work) {
  int ours = -1, theirs = -1;
  if (watcher == Watcher::kTerminal || watcher == Watcher::kLauncherOnTerminal) {
    EXPECT_EQ(::openpty(&ours, &theirs, nullptr, nullptr, nullptr), 0);
  } else {
    int pipe[2];
    EXPECT_EQ(::pipe(pipe), 0);
    ours = pipe[0];
    theirs = pipe[1];
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ours);
    ::unsetenv("OMPI_COMM_WORLD_RANK");
    const bool direct = watcher == Watcher::kTerminal || watcher == Watcher::kPipe;
    if (direct) work_with(theirs, work);
    launch(theirs, work);
  }
  ::close(theirs);
  auto text = read_all_of(ours);
  ::close(ours);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return text;
}

}  // namespace smp
