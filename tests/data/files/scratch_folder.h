// A folder for the files of one test, gone with it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/files.h"

namespace smp::data {

class ScratchFolder {
 public:
  ScratchFolder() : path_(testing::TempDir()) {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    path_ /= base::concat("smp_", test->test_suite_name(), "_", test->name(), "_", ::getpid());
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }
  /// Writes a file. @return its path
  std::string write(const std::string& name, std::string_view content) const {
    base::write_file(path(name), content);
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace smp::data
