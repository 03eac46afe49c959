// Work in a copy of this process: its answer, or why there is none, whoever else looks after
// children; and what both processes have in common.
#include "trial/child_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>
#include <csignal>

#include <chrono>
#include <cstddef>
#include <cstdio>
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

/// A thread of the program that makes what the work waits for does not come along.
TEST(ChildProcess, IsGivenUpWhereItWaits) {
  const auto begin = std::chrono::steady_clock::now();
  const auto [answer, fault] = in_child_process([] { return ::pause(), std::string(); }, 4);
  EXPECT_FALSE(answer);
  EXPECT_THAT(fault, HasSubstr("computed nothing for 2 s: it waits, perhaps for another thread"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
}

std::string read_some(int file, std::size_t most) {
  std::string text(most, '\0');
  const auto count = ::read(file, text.data(), text.size());
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

/// An open file has one place for a process and its copies; the program reads on meanwhile, too.
TEST(ChildProcess, ReadsFilesApart) {
  std::FILE* const written = std::tmpfile();
  ASSERT_TRUE(written);
  ASSERT_EQ(::write(::fileno(written), "abcdefgh", 8), 8);
  const auto path = "/proc/self/fd/" + std::to_string(::fileno(written));
  const int file = ::open(path.c_str(), O_RDONLY);
  ASSERT_EQ(read_some(file, 2), "ab");
  EXPECT_EQ(in_child_process([&] { return read_some(file, 3); }, kPatience).answer, "cde");
  EXPECT_EQ(read_some(file, 9), "cdefgh");
  ::close(file);
  std::fclose(written);
}

/// What was read of a pipe could not be given back.
TEST(ChildProcess, TakesNothingFromAPipeAtStandardInput) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_NONBLOCK), 0);  // so that a lost text is no wait
  const int before = ::dup(STDIN_FILENO);
  ::dup2(pipe[0], STDIN_FILENO);
  ASSERT_EQ(::write(pipe[1], "abc", 3), 3);
  EXPECT_EQ(in_child_process([] { return read_some(STDIN_FILENO, 3); }, kPatience).answer, "");
  EXPECT_EQ(read_some(STDIN_FILENO, 3), "abc");
  ::dup2(before, STDIN_FILENO);
  for (const int file : {before, pipe[0], pipe[1]}) ::close(file);
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
