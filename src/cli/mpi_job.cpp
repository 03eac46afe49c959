// cli/mpi_job.cpp: mpirun in a child process, in whose group a Ctrl-C reaches it too.
#include "cli/mpi_job.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/machine/cores.h"

namespace smp::cli {
namespace {

using base::kSecond;

constexpr const char* kLauncher = "mpirun";
constexpr auto kPause = std::chrono::milliseconds(10);
constexpr auto kGrace = 10 * kSecond;  // between asking a job to end and ending it

bool can_be_started(const std::string& path) { return ::access(path.c_str(), X_OK) == 0; }

/// @throws UsageError  `name` is no path of a program, and no folder of PATH holds it
void require_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    SMP_REQUIRE(can_be_started(name), "cannot start ", name, ": ", std::strerror(errno));
    return;
  }
  const char* const folders = std::getenv("PATH");
  std::istringstream list(folders == nullptr ? "" : folders);
  for (std::string folder; std::getline(list, folder, ':');) {
    if (can_be_started(base::concat(folder, "/", name))) return;
  }
  throw UsageError(base::concat("cannot start ", name, ": it is in no folder of PATH"));
}

/// Returns the call of mpirun that ./smp demo makes too: the programs' own messages are the only
/// ones, and ranks may outnumber cores.
std::vector<std::string> call_of(const MpiJob& job) {
  std::vector<std::string> call = {
      kLauncher, "-q",  "--oversubscribe", "--bind-to", "none",      "--mca",
      "pml",     "ob1", "--mca",           "btl",       "vader,self"};
  if (job.ranks > base::num_cores({base::own_cores()})) {
    call.insert(call.end(), {"--mca", "mpi_yield_when_idle", "1"});
  }
  if (::geteuid() == 0) call.emplace_back("--allow-run-as-root");
  call.insert(call.end(), {"-n", std::to_string(job.ranks)});
  call.insert(call.end(), job.command.begin(), job.command.end());
  return call;
}

/// Becomes the job; in the child process. Does not return.
[[noreturn]] void become(const MpiJob& job, std::vector<std::string>& call, int log, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // it ended before it could tell
  for (const auto& [name, value] : job.environment) ::setenv(name.c_str(), value.c_str(), 1);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(log, STDOUT_FILENO);  // first: it is number 0 if there was no standard input
  ::dup2(log, STDERR_FILENO);
  ::dup2(nothing, STDIN_FILENO);
  std::vector<char*> arguments;
  for (auto& word : call) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

/// Waits until the process has ended, and ends it after the deadline.
EndedJob wait_for(pid_t child, double most_seconds) {
  const base::SteadyClock clock;
  const auto start = clock.now();
  const auto deadline = start + static_cast<base::Nanoseconds>(most_seconds * kSecond);
  EndedJob ended;
  int status = 0;
  bool killed = false;
  for (;;) {
    const pid_t found = ::waitpid(child, &status, WNOHANG);
    if (found == child || (found < 0 && errno != EINTR)) break;
    if (!ended.timed_out && clock.now() > deadline) {
      ended.timed_out = true;
      ::kill(child, SIGTERM);
    }
    if (!killed && clock.now() > deadline + kGrace) {
      killed = true;
      ::kill(child, SIGKILL);
    }
    std::this_thread::sleep_for(kPause);
  }
  ended.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  ended.seconds = static_cast<double>(clock.now() - start) / kSecond;
  return ended;
}

bool speaks_of_an_error(std::string_view line) {
  for (const char* const word : {"error", "Error", "ERROR", "terminate called", "cannot"}) {
    if (line.find(word) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

void require_startable(const std::string& program) {
  require_program(kLauncher);
  require_program(program);
}

EndedJob run_job(const MpiJob& job) {
  const int log = ::open(job.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  SMP_REQUIRE(log >= 0, "cannot write ", job.log, ": ", std::strerror(errno));
  auto call = call_of(job);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) become(job, call, log, parent);
  const int error = errno;
  ::close(log);
  SMP_REQUIRE(child > 0, "cannot start ", kLauncher, ": ", std::strerror(error));
  return wait_for(child, job.most_seconds);
}

std::string first_reason(const std::string& log) {
  constexpr std::string_view kOurs = "smp: ";
  std::istringstream lines(log);
  std::string of_error, last;
  for (std::string line; std::getline(lines, line);) {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) {
      line.pop_back();
    }
    if (line.starts_with(kOurs)) return line.substr(kOurs.size());
    if (of_error.empty() && speaks_of_an_error(line)) of_error = line;
    if (!line.empty()) last = line;
  }
  return of_error.empty() ? last : of_error;
}

}  // namespace smp::cli
