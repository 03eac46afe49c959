// trial/child_process.cpp: fork, a pipe, and all the ways in which a child ends.
#include "trial/child_process.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "base/check.h"

namespace smp {
namespace {

constexpr int kAnswered = 0;
constexpr int kExited = 86;  // the work called exit()
constexpr int kThrew = 87;
constexpr char kWhole = '\n';  // ends an answer

/// Keeps the work from running this process's own atexit handlers when it exits by itself, and its
/// output from being seen.
void prepare_child() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  std::atexit([] { ::_exit(kExited); });
  std::at_quick_exit([] { ::_exit(kExited); });
  const int nowhere = ::open("/dev/null", O_WRONLY);
  ::dup2(nowhere, STDOUT_FILENO);
  ::dup2(nowhere, STDERR_FILENO);
  at::set_num_threads(1);  // the others did not come along
}

[[noreturn]] void run_child(const std::function<std::string()>& work, int pipe) {
  try {
    prepare_child();
    const std::string answer = work() + kWhole;
    for (std::size_t at = 0; at < answer.size();) {
      const auto sent = ::write(pipe, answer.data() + at, answer.size() - at);
      if (sent < 0 && errno != EINTR) ::_exit(kThrew);
      if (sent > 0) at += static_cast<std::size_t>(sent);
    }
    ::_exit(kAnswered);
  } catch (...) {
    ::_exit(kThrew);
  }
}

/// Returns all that comes until the child ends, or what came within `seconds`.
std::string read_all(int pipe, double seconds, bool& in_time) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::string bytes;
  char part[1 << 16];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    in_time = left.count() > 0;
    if (!in_time) return bytes;
    pollfd ready{pipe, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 1000))) <= 0) {
      continue;
    }
    const auto count = ::read(pipe, part, sizeof part);
    if (count == 0) return bytes;
    if (count > 0) bytes.append(part, static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) return bytes;
  }
}

std::string text_of_end(int status) {
  if (WIFSIGNALED(status)) {
    return base::concat("ended by signal ", WTERMSIG(status), " (", ::strsignal(WTERMSIG(status)),
                        ")");
  }
  if (WEXITSTATUS(status) == kExited) return "called exit()";
  return base::concat("ended with status ", WEXITSTATUS(status));
}

}  // namespace

ChildAnswer in_child_process(const std::function<std::string()>& work, double seconds) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return {{}, base::concat("pipe: ", std::strerror(errno))};
  std::cout.flush();  // or both processes would print it
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) run_child(work, pipe[1]);
  const int error = errno;
  ::close(pipe[1]);
  if (child < 0) {
    ::close(pipe[0]);
    return {{}, base::concat("fork: ", std::strerror(error))};
  }
  bool in_time = true;
  auto bytes = read_all(pipe[0], seconds, in_time);
  ::close(pipe[0]);
  if (!in_time) ::kill(child, SIGKILL);
  int status = 0;
  pid_t ended;
  while ((ended = ::waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  // Where the program itself has taken the status, or ignores SIGCHLD, the answer tells.
  const std::string unknown = ended < 0 ? std::strerror(errno) : "";
  if (!in_time) return {{}, base::concat("did not end within ", seconds, " s")};
  const bool ended_well = ended < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == kAnswered);
  if (ended_well && bytes.ends_with(kWhole)) {
    bytes.pop_back();
    return {std::move(bytes), {}};
  }
  if (ended < 0) {
    return {{},
            base::concat("ended, nobody can say how: this program ignores SIGCHLD, or waits for "
                         "every child itself (waitpid: ",
                         unknown, ")")};
  }
  return {{}, text_of_end(status)};
}

}  // namespace smp
