// server/common_errors.cpp: see the header.
#include "server/common_errors.h"

#include <chrono>
#include <cstdio>
#include <mutex>
#include <set>
#include <thread>

namespace smp::server {
namespace {

struct Texts {
  std::mutex mutex;
  std::set<std::string> texts;
};

/// Asked at the end of the process, so never freed.
Texts& left_to_others() {
  static auto* const texts = new Texts();
  return *texts;
}

}  // namespace

void leave_to_another_rank(const std::string& text) {
  auto& left = left_to_others();
  const std::lock_guard lock(left.mutex);
  left.texts.insert(text);
}

bool is_left_to_another_rank(const std::string& text) {
  auto& left = left_to_others();
  const std::lock_guard lock(left.mutex);
  return left.texts.contains(text);
}

void say_once(const std::string& text) noexcept try {
  if (is_left_to_another_rank(text)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return;
  }
  std::fprintf(stderr, "smp: %s\n", text.c_str());
  std::fflush(stderr);
} catch (...) {
  std::fputs("smp: an error that could not be printed\n", stderr);
}

}  // namespace smp::server
