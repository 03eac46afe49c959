// fuzz/apart.cpp
#include "fuzz/apart.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace smp::fuzz {
namespace {

constexpr int kPrograms = 50;  // of one child
constexpr std::size_t kMaxText = 4000;
constexpr double kPatience = 6;  // on a busy machine

/// A result on its way through the pipe.
struct Head {
  int verdict = 0;
  int replayed = 0;
  int ahead = 0;
  std::uint32_t length = 0;
};

/// One child process, and what it says.
class Child {
 public:
  Child(int first, int count, const std::function<Result(int)>& judged) {
    int ends[2];
    errors_ = std::tmpfile();
    if (errors_ == nullptr || pipe(ends) != 0) throw std::runtime_error("no pipe for a child");
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ == 0) {
      close(ends[0]);
      dup2(fileno(errors_), STDERR_FILENO);
      for (int i = first; i < first + count; ++i) tell(ends[1], judged(i));
      _exit(0);
    }
    close(ends[1]);
    results_ = ends[0];
  }
  ~Child() {
    kill(pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    close(results_);
    std::fclose(errors_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// The next result; false if the child ended or says nothing in time, and `result` says which.
  bool next(Result& result, double seconds) {
    begin_ = std::chrono::steady_clock::now();
    computed_before_ = computed();
    seconds_ = seconds;
    Head head;
    if (!read_all(&head, sizeof head)) return fail(result);
    result.verdict = static_cast<Verdict>(head.verdict);
    result.replayed = head.replayed;
    result.ahead = head.ahead;
    result.text.resize(head.length);
    return read_all(result.text.data(), head.length) || fail(result);
  }

 private:
  static void tell(int pipe, const Result& result) {
    const auto text = result.text.substr(0, kMaxText);
    Head head;
    head.verdict = static_cast<int>(result.verdict);
    head.replayed = result.replayed;
    head.ahead = result.ahead;
    head.length = static_cast<std::uint32_t>(text.size());
    std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
    bytes += text;
    if (write(pipe, bytes.data(), bytes.size()) < 0) _exit(1);
  }

  /// The seconds that the child has had a processor.
  double computed() const {
    clockid_t clock{};
    timespec time{};
    if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  /// True if the child has said nothing for as long as it may, and this is not because others have
  /// the processors: what waits for nothing that will come has hardly computed, so that it gets
  /// `kPatience` times as long.
  bool is_late() const {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
    return computed() - computed_before_ > seconds_ || passed.count() > kPatience * seconds_;
  }

  bool read_all(void* data, std::size_t size) {
    constexpr int kLook = 100;  // milliseconds
    auto* to = static_cast<char*>(data);
    while (size > 0) {
      pollfd wait{results_, POLLIN, 0};
      if (poll(&wait, 1, kLook) <= 0) {
        if (!is_late()) continue;
        late_ = true;
        return false;
      }
      const auto got = read(results_, to, size);
      if (got <= 0) return false;
      to += got;
      size -= static_cast<std::size_t>(got);
    }
    return true;
  }

  bool fail(Result& result) {
    result.verdict = late_ ? Verdict::kHang : Verdict::kCrash;
    std::fseek(errors_, 0, SEEK_END);
    const auto end = std::ftell(errors_);
    const auto begin = std::max<long>(0, end - 1500);
    std::string last(static_cast<std::size_t>(end - begin), '\0');
    std::fseek(errors_, begin, SEEK_SET);
    last.resize(std::fread(last.data(), 1, last.size(), errors_));
    result.text = (late_ ? "no result in time; " : "the process ended; ") + ("it said: " + last);
    return false;
  }

  pid_t pid_ = -1;
  int results_ = -1;
  std::FILE* errors_ = nullptr;
  bool late_ = false;
  std::chrono::steady_clock::time_point begin_;  // of the program
  double computed_before_ = 0, seconds_ = 0;
};

}  // namespace

void judge_apart(int count, const std::function<Result(int)>& judged,
                 const std::function<bool(int, const Result&)>& note, double seconds) {
  for (int at = 0; at < count;) {
    const int end = std::min(count, at + kPrograms);
    Child child(at, end - at, judged);
    for (bool alive = true; alive && at < end; ++at) {
      Result result;
      alive = child.next(result, seconds);
      if (!note(at, result)) return;
    }
  }
}

}  // namespace smp::fuzz
