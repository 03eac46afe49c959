// What a forked child does not keep: connections of its parent, and objects that are not its own.
#include "base/forked_child.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <utility>

namespace smp::base {
namespace {

std::pair<int, int> connection() {
  int files[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, files), 0);
  return {files[0], files[1]};
}

/// A child that sleeps as long as the object lives.
class SleepingChild {
 public:
  SleepingChild() : process_(::fork()) {
    while (process_ == 0) ::pause();
  }
  ~SleepingChild() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  SleepingChild(const SleepingChild&) = delete;
  SleepingChild& operator=(const SleepingChild&) = delete;

 private:
  const pid_t process_;
};

/// Whether the other end of `file` is closed, or will be within `milliseconds`.
bool is_closed(int file, int milliseconds) {
  pollfd end{file, POLLIN, 0};
  char byte = 0;
  return ::poll(&end, 1, milliseconds) == 1 && ::recv(file, &byte, 1, 0) == 0;
}

/// The status of a child that does this.
int in_child(const std::function<int()>& run) {
  const auto child = ::fork();
  if (child == 0) std::_Exit(run());
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(ForkedChild, KeepsNoConnectionThatIsItsParentsAlone) {
  const auto [kept, far_of_kept] = connection();
  const auto [own, far_of_own] = connection();
  keep_from_children(own);
  {
    const SleepingChild child;
    ::close(kept);
    close_own(own);
    EXPECT_TRUE(is_closed(far_of_own, 10'000));
    EXPECT_FALSE(is_closed(far_of_kept, 100)) << "the child has it";
  }
  EXPECT_TRUE(is_closed(far_of_kept, 10'000));
  ::close(far_of_kept);
  ::close(far_of_own);
}

TEST(ForkedChild, LeavesItsParentsConnectionOpen) {
  const auto [own, far] = connection();
  keep_from_children(own);
  EXPECT_EQ(in_child([] { return 0; }), 0);
  EXPECT_FALSE(is_closed(far, 0));
  close_own(own);
  EXPECT_TRUE(is_closed(far, 0));
  ::close(far);
}

/// A child opens files of its own, which get the numbers of those that are closed in it.
TEST(ForkedChild, ClosesNoFileOfItsOwnInTheNameOfItsParent) {
  const auto [own, far] = connection();
  keep_from_children(own);
  const int number = own;
  EXPECT_EQ(in_child([number] {
              if (::fcntl(number, F_GETFD) != -1) return 1;
              if (::dup2(STDERR_FILENO, number) != number) return 2;
              close_own(number);  // as the destructor of a copied object does
              return ::fcntl(number, F_GETFD) == -1 ? 3 : 0;
            }),
            0);
  close_own(own);
  ::close(far);
}

TEST(ForkedChild, KnowsWhatWasMadeInIt) {
  const MadeHere of_parent;
  EXPECT_TRUE(of_parent.is_here());
  EXPECT_EQ(in_child([&] {
              if (of_parent.is_here()) return 1;
              const MadeHere of_child;
              if (!of_child.is_here()) return 2;
              return in_child([&] { return of_child.is_here() || of_parent.is_here() ? 3 : 0; });
            }),
            0);
  EXPECT_TRUE(of_parent.is_here());
}

}  // namespace
}  // namespace smp::base
