// base/replacement_file.cpp: a file without a name, which gets one, which is exchanged.
#include "base/replacement_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "base/check.h"

namespace smp::base {
namespace {

constexpr mode_t kMode = 0644;

[[noreturn]] void fail(const std::string& path, int error) {
  throw ResourceError(concat("cannot write ", path, ": ", std::strerror(error)));
}

std::string folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

/// A new name beside `path`, of nobody else: processes of several machines or containers may have
/// one number, and write one path.
std::string name_beside(const std::string& path) {
  std::random_device random;
  return concat(path, ".new.", ::getpid(), '.', random(), random());
}

/// How the system calls an open file; a link to it is the only way to name one that has no name.
std::string link_of(int descriptor) { return concat("/proc/self/fd/", descriptor); }

/// -1: this file system, or this machine, has no files without names.
int open_nameless(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, kMode);
  if (descriptor < 0 || ::access(link_of(descriptor).c_str(), F_OK) == 0) return descriptor;
  ::close(descriptor);
  return -1;
}

/// Makes a rename in `folder` survive a loss of power.
void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

ReplacementFile::ReplacementFile(std::string path)
    : path_(std::move(path)), descriptor_(open_nameless(folder_of(path_))) {
  if (descriptor_ >= 0) return;
  temporary_ = name_beside(path_);
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  if (descriptor_ < 0) fail(path_, errno);
}

ReplacementFile::~ReplacementFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void ReplacementFile::write_at(std::uint64_t offset, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, content.data(), content.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(path_, written < 0 ? errno : ENOSPC);
    content.remove_prefix(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

/// A link takes nobody's place, only a rename does.
void ReplacementFile::give_name() {
  const auto name = name_beside(path_);
  const int linked =
      ::linkat(AT_FDCWD, link_of(descriptor_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW);
  if (linked != 0) fail(path_, errno);
  temporary_ = name;
}

void ReplacementFile::commit(Durability durability) {
  const bool synced = durability == Durability::kSynced;
  if (synced && ::fsync(descriptor_) != 0) fail(path_, errno);
  if (temporary_.empty()) give_name();
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_, errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, errno);
  temporary_.clear();
  if (synced) sync_folder(folder_of(path_));
}

}  // namespace smp::base
