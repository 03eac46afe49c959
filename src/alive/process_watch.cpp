// alive/process_watch.cpp: a file descriptor for each process, which can be read once it has ended
// (pidfd_open(2), Linux 5.3).
#include "alive/process_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/signals_blocked.h"

namespace smp::base {
namespace {

/// Opens a descriptor of a process; -1 if there is no such process, or no descriptor can be had.
int open_process(std::int64_t process) noexcept {
  return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process), 0));
}

}  // namespace

bool has_ended(std::int64_t process) noexcept {
  const int own_errno = errno;
  bool ended = false;
  if (const int file = open_process(process); file >= 0) {
    pollfd end{file, POLLIN, 0};
    ended = poll(&end, 1, 0) == 1;
    close(file);
  } else {
    ended = ::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH;
  }
  errno = own_errno;
  return ended;
}

struct ProcessWatch::Ends {
  Ends(const std::vector<std::int64_t>& processes, std::function<void(std::size_t)>&& call)
      : on_end(std::move(call)), stop(eventfd(0, EFD_CLOEXEC)) {
    for (std::size_t i = 0; i < processes.size(); ++i) {
      files.push_back({open_process(processes[i]), POLLIN, 0});
      if (files.back().fd < 0 && has_ended(processes[i])) ended.push_back(i);
    }
    files.push_back({stop, POLLIN, 0});
  }
  ~Ends() {
    for (const auto& each : files) {
      if (each.fd >= 0) close(each.fd);
    }
  }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;

  /// Reports the ends of processes until it is told to stop. poll() passes over files that are -1.
  void wait() {
    for (const auto i : ended) on_end(i);
    for (;;) {
      if (poll(files.data(), files.size(), -1) < 0) {
        if (errno == EINTR) continue;
        return;
      }
      if (files.back().revents != 0) return;
      for (std::size_t i = 0; i + 1 < files.size(); ++i) {
        if (files[i].revents == 0) continue;
        close(std::exchange(files[i].fd, -1));
        on_end(i);
      }
    }
  }

  const std::function<void(std::size_t)> on_end;
  const int stop;
  std::vector<pollfd> files;       // of the processes, then `stop`
  std::vector<std::size_t> ended;  // before the watch began
};

ProcessWatch::ProcessWatch(const std::vector<std::int64_t>& processes,
                           std::function<void(std::size_t)> on_end)
    : ends_(std::make_unique<Ends>(processes, std::move(on_end))) {
  if (ends_->stop < 0) return;
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { ends_->wait(); });
}

ProcessWatch::~ProcessWatch() {
  if (!thread_.joinable()) return;
  eventfd_write(ends_->stop, 1);
  thread_.join();
}

}  // namespace smp::base
