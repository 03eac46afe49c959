// Processes that a launcher has started, and that are no ranks yet: one of them speaks.
#include "alive/spoken_mark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "alive/common_errors.h"

namespace smp::base {
namespace {

using std::chrono::milliseconds;

/// The environment that Open MPI gives to process `rank`.
void launched(int rank, int ranks, int ranks_here, const std::string& folder) {
  ::setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("OMPI_COMM_WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  ::setenv("OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(ranks_here).c_str(), 1);
  ::setenv("PMIX_NAMESPACE", "4711", 1);
  if (folder.empty()) {
    ::unsetenv("PMIX_SERVER_TMPDIR");
  } else {
    ::setenv("PMIX_SERVER_TMPDIR", folder.c_str(), 1);
  }
}

class SpokenMarkTest : public testing::Test {
 protected:
  SpokenMarkTest() { std::filesystem::create_directories(folder_); }
  ~SpokenMarkTest() override { std::filesystem::remove_all(folder_); }

  /// Starts a process as the launcher does; what it prints is appended to said().
  pid_t start(int rank, const std::function<void()>& main, int ranks = 4, int ranks_here = 4,
              bool has_folder = true) {
    const auto child = ::fork();
    if (child != 0) return child;
    launched(rank, ranks, ranks_here, has_folder ? folder_ : "");
    if (std::freopen(errors_.c_str(), "a", stderr) == nullptr) std::_Exit(99);
    std::setvbuf(stderr, nullptr, _IONBF, 0);
    main();
    std::_Exit(0);
  }
  static void wait_for(const std::vector<pid_t>& processes) {
    for (const auto process : processes) ::waitpid(process, nullptr, 0);
  }
  std::string said() const {
    std::ifstream file(errors_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::string folder_ = testing::TempDir() + "spoken_mark_" + std::to_string(::getpid());
  const std::string errors_ = folder_ + "/errors";
};

void report(const std::string& text, int milliseconds_before = 0) {
  std::this_thread::sleep_for(milliseconds(milliseconds_before));
  server::say_once(text);
}

TEST_F(SpokenMarkTest, WhatAllEndByIsSaidOnceWhoeverIsFirst) {
  for (int late = 0; late < 4; ++late) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    std::vector<pid_t> all;
    for (int rank = 0; rank < 4; ++rank) {
      all.push_back(start(rank, [&] { report("no such flag", rank == late ? 300 : 0); }));
    }
    wait_for(all);
    EXPECT_EQ(said(), "smp: no such flag\n") << "rank " << late << " comes late";
  }
}

/// A launcher ends all processes when the first one has ended: that one must have spoken, or heard.
TEST_F(SpokenMarkTest, NobodyGoesOnBeforeItIsSaid) {
  const auto speaker = start(2, [] {
    SpokenMark mark("no such flag");
    std::this_thread::sleep_for(milliseconds(400));
    std::fputs("said\n", stderr);
    if (!mark.is_set()) mark.set();
  });
  std::this_thread::sleep_for(milliseconds(100));
  const auto other = start(0, [] {
    const SpokenMark mark("no such flag");
    std::fputs(mark.is_set() ? "heard\n" : "not heard\n", stderr);
  });
  wait_for({speaker, other});
  EXPECT_EQ(said(), "said\nheard\n");
}

TEST_F(SpokenMarkTest, WhoIsKilledWhileItSpeaksIsNotWaitedFor) {
  const auto speaker = start(0, [] {
    const SpokenMark mark("no such flag");
    for (;;) ::pause();
  });
  std::this_thread::sleep_for(milliseconds(100));
  ::kill(speaker, SIGKILL);
  wait_for({speaker, start(1, [] { report("no such flag"); })});
  EXPECT_EQ(said(), "smp: no such flag\n");
}

TEST_F(SpokenMarkTest, OtherTextsAreOfTheirOwn) {
  wait_for({start(0, [] { report("no such flag"); })});
  wait_for({start(1, [] { report("no such file"); })});
  EXPECT_EQ(said(), "smp: no such flag\nsmp: no such file\n");
}

TEST_F(SpokenMarkTest, AProcessMaySayATextAgain) {
  wait_for({start(0, [] {
    report("no such flag");
    report("no such flag");
  })});
  EXPECT_EQ(said(), "smp: no such flag\nsmp: no such flag\n");
}

/// There rank 0 is as a rule the first, and the launcher ends the others.
TEST_F(SpokenMarkTest, OfSeveralMachinesRankZeroSpeaksFirst) {
  const auto start_time = std::chrono::steady_clock::now();
  const auto other = start(
      3, [] { report("no such flag"); }, 4, 2);
  const auto first = start(
      0, [] { report("no such flag", 300); }, 4, 2);
  wait_for({other, first});
  EXPECT_EQ(said(), "smp: no such flag\n");
  EXPECT_LT(std::chrono::steady_clock::now() - start_time, milliseconds(900)) << "and is heard";
  wait_for({start(
      3, [] { report("of this rank alone"); }, 4, 2)});
  EXPECT_THAT(said(), testing::HasSubstr("smp: of this rank alone\n"));
}

TEST_F(SpokenMarkTest, WithoutAFolderEverybodySpeaksAndRankZeroFirst) {
  const auto other = start(
      3, [] { report("no such flag"); }, 4, 4, false);
  const auto first = start(
      0, [] { report("no such flag", 200); }, 4, 4, false);
  wait_for({first});
  EXPECT_EQ(said(), "smp: no such flag\n");
  wait_for({other});
  EXPECT_EQ(said(), "smp: no such flag\nsmp: no such flag\n");
}

TEST_F(SpokenMarkTest, AFolderThatMayNotBeWrittenSilencesNobody) {
  const auto gone = start(2, [] {
    ::setenv("PMIX_SERVER_TMPDIR", "/no/such/folder", 1);
    report("no such flag");
  });
  wait_for({gone});
  EXPECT_EQ(said(), "smp: no such flag\n");
}

}  // namespace
}  // namespace smp::base
