// Work in a copy of this process: its answer, or why there is none, whoever else looks after
// children.
#include "trial/child_process.h"

#include <gmock/gmock.h>
#include <unistd.h>
#include <csignal>

#include <cstdlib>
#include <functional>
#include <string>

namespace smp {
namespace child_process_test {

using testing::HasSubstr;

constexpr double kPatience = 20;  // seconds

void expect_answers() {
  const auto own = ::getpid();
  const auto other = in_child_process([] { return std::to_string(::getpid()); }, kPatience);
  ASSERT_TRUE(other.answer);
  EXPECT_NE(*other.answer, std::to_string(own));
  EXPECT_EQ(in_child_process([] { return std::string(); }, kPatience).answer, "");
  const std::string large(1 << 20, '\n');
  EXPECT_EQ(in_child_process([&] { return large; }, kPatience).answer, large);
}

std::string fault_of(const std::function<std::string()>& work) {
  auto [answer, fault] = in_child_process(work, kPatience);
  EXPECT_FALSE(answer);
  return fault;
}

TEST(ChildProcess, AnswersOrSaysHowItEnded) {
  expect_answers();
  EXPECT_THAT(fault_of([]() -> std::string { std::abort(); }), HasSubstr("ended by signal 6"));
  EXPECT_EQ(fault_of([]() -> std::string { std::exit(0); }), "called exit()");
  EXPECT_THAT(fault_of([]() -> std::string { throw 1; }), HasSubstr("ended with status"));
  EXPECT_THAT(in_child_process([] { return ::sleep(60), std::string(); }, 0.2).fault,
              HasSubstr("did not end within 0.2 s"));
}

/// Then nobody can be asked how a child ended.
TEST(ChildProcess, AnswersInAProgramThatIgnoresItsChildren) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  expect_answers();
  EXPECT_THAT(fault_of([]() -> std::string { std::abort(); }),
              HasSubstr("this program ignores SIGCHLD"));
  EXPECT_THAT(fault_of([]() -> std::string { std::exit(0); }),
              HasSubstr("this program ignores SIGCHLD"));
  std::signal(SIGCHLD, before);
}

}  // namespace child_process_test
}  // namespace smp
