// Mapped files that were cut: an answer in place of a signal, and everybody else's faults as
// before.
#include "base/memory/cut_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

namespace smp::base {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 8;

/// A mapped file of pages that each hold their number.
class Pages {
 public:
  Pages() : file_(::memfd_create("smp_cut_pages", MFD_CLOEXEC)) {
    for (std::size_t i = 0; i < kPages; ++i) {
      const std::string page(kPage, static_cast<char>('a' + i));
      EXPECT_EQ(::write(file_, page.data(), page.size()), static_cast<ssize_t>(kPage));
    }
    bytes_ = static_cast<char*>(::mmap(nullptr, kPages * kPage, PROT_READ, MAP_SHARED, file_, 0));
    EXPECT_NE(bytes_, MAP_FAILED);
  }
  ~Pages() {
    ::munmap(bytes_, kPages * kPage);
    ::close(file_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  void cut(std::size_t pages) const {
    EXPECT_EQ(::ftruncate(file_, static_cast<off_t>(pages * kPage)), 0);
  }
  const char* page(std::size_t number) const { return bytes_ + number * kPage; }

 private:
  int file_;
  char* bytes_ = nullptr;
};

TEST(CutPages, AreAnAnswer) {
  const Pages pages;
  std::string copy(kPages * kPage, '\0');
  ASSERT_TRUE(copy_mapped(copy.data(), pages.page(0), copy.size()));
  EXPECT_EQ(copy.substr(3 * kPage, kPage), std::string(kPage, 'd'));
  pages.cut(5);
  for (int again = 0; again < 3; ++again) {
    EXPECT_FALSE(copy_mapped(copy.data(), pages.page(0), copy.size()));
    EXPECT_TRUE(copy_mapped(copy.data(), pages.page(4), kPage));
    EXPECT_FALSE(copy_mapped(copy.data(), pages.page(5), 1));
  }
}

TEST(CutPages, AreAnAnswerOnEveryThread) {
  const Pages whole, cut;
  cut.cut(1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::string copy(2 * kPage, '\0');
      for (int k = 0; k < 300; ++k) {
        const auto& pages = i % 2 == 0 ? whole : cut;
        EXPECT_EQ(copy_mapped(copy.data(), pages.page(0), copy.size()), i % 2 == 0);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(CutPages, LeaveTheHandlerOfOthers) {
  struct sigaction before {};
  sigaction(SIGBUS, nullptr, &before);
  const Pages pages;
  pages.cut(1);
  std::string copy(2 * kPage, '\0');
  EXPECT_FALSE(copy_mapped(copy.data(), pages.page(0), copy.size()));
  struct sigaction after {};
  sigaction(SIGBUS, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  EXPECT_EQ(before.sa_flags, after.sa_flags);
}

/// What is not read from the file: where the copy goes is lost, and that is the program's fault.
TEST(CutPagesDeathTest, AreNotThoseOfTheTarget) {
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_DFL);
        const Pages pages;
        const int file = ::memfd_create("smp_cut_target", MFD_CLOEXEC);
        auto* const target = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        copy_mapped(target, pages.page(0), kPage);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace smp::base
