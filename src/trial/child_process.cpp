// trial/child_process.cpp: fork, a pipe, and all the ways in which a child ends.
#include "trial/child_process.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <system_error>
#include <vector>

#include "base/check.h"

namespace smp {
namespace {

constexpr int kAnswered = 0;
constexpr int kExited = 86;  // the work called exit()
constexpr int kThrew = 87;
constexpr char kWhole = '\n';  // ends an answer

std::vector<int> open_files() {
  std::vector<int> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
    files.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return files;
}

bool is_only_read(int file) {
  struct stat about;
  const int flags = ::fcntl(file, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) == O_RDONLY && ::fstat(file, &about) == 0 &&
         S_ISREG(about.st_mode);
}

/// Opens the files again that the program reads, at the same places: the place of an open file is
/// one for both processes, so a line of data that the work reads would be missing in the program.
void read_files_apart() {
  for (const int file : open_files()) {
    const auto place = is_only_read(file) ? ::lseek(file, 0, SEEK_CUR) : -1;
    if (place < 0) continue;
    const int own = ::open(base::concat("/proc/self/fd/", file).c_str(), O_RDONLY | O_CLOEXEC);
    if (own < 0) continue;  // it may not be opened any more
    ::lseek(own, place, SEEK_SET);
    ::dup2(own, file);
    ::close(own);
  }
}

/// Keeps the work from taking what comes to this process through a pipe or a terminal, which nobody
/// could give back.
void leave_input_alone() {
  if (::lseek(STDIN_FILENO, 0, SEEK_CUR) >= 0) return;
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
}

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
  read_files_apart();
  leave_input_alone();
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

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Tells whether a child waits without computing: as a rule for another thread, which a copy of the
/// process does not have.
class IdleWatch {
 public:
  explicit IdleWatch(pid_t child)
      : file_(base::concat("/proc/", child, "/stat")), since_(Clock::now()) {}

  /// Returns for how long the child has slept without using its processor, as far as calls of this
  /// function saw.
  double seconds() {
    std::ifstream file(file_);
    std::string text, state, skipped;
    std::getline(file, text);
    // After the name, which may contain anything: state, ten numbers, time of the program and of
    // the kernel.
    std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    fields >> state;
    for (int i = 0; i < 10; ++i) fields >> skipped;
    std::int64_t program = 0, kernel = 0;
    fields >> program >> kernel;
    if (!fields || state != "S" || program + kernel != used_) since_ = Clock::now();
    used_ = program + kernel;
    return Seconds(Clock::now() - since_).count();
  }

 private:
  std::string file_;
  Clock::time_point since_;
  std::int64_t used_ = -1;
};

constexpr double kMostIdle = 10;  // seconds that a child may sleep

/// Returns all that comes until the child ends; else puts into `why` why its end was not awaited:
/// it takes longer than `seconds`, or it sleeps for kMostIdle, or half of `seconds` if that is
/// less.
std::string read_all(int pipe, pid_t child, double seconds, std::string& why) {
  const auto end = Clock::now() + Seconds(seconds);
  const double most_idle = std::min(kMostIdle, seconds / 2);
  IdleWatch idle(child);
  std::string bytes;
  char part[1 << 16];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) {
      why = base::concat("did not end within ", seconds, " s");
      return bytes;
    }
    if (idle.seconds() > most_idle) {
      why = base::concat("computed nothing for ", most_idle,
                         " s: it waits, perhaps for another thread of the program, which does not "
                         "run in a copy of the process");
      return bytes;
    }
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
  std::string given_up;
  auto bytes = read_all(pipe[0], child, seconds, given_up);
  ::close(pipe[0]);
  if (!given_up.empty()) ::kill(child, SIGKILL);
  int status = 0;
  pid_t ended;
  while ((ended = ::waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  // Where the program itself has taken the status, or ignores SIGCHLD, the answer tells.
  const std::string unknown = ended < 0 ? std::strerror(errno) : "";
  if (!given_up.empty()) return {{}, given_up};
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
