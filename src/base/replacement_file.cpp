// base/replacement_file.cpp: a file without a name, which gets one, which is exchanged.
#include "base/replacement_file.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
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

/// Returns a new name beside `path` that nobody else has. The process number is not enough, since
/// processes of several machines or containers may have the same one and write the same path.
std::string name_beside(const std::string& path) {
  std::random_device random;
  return concat(path, ".new.", ::getpid(), '.', random(), random());
}

/// Returns the system's path to an open file; a link to it is the only way to name a file that has
/// no name.
std::string link_of(int descriptor) { return concat("/proc/self/fd/", descriptor); }

/// Opens a file without a name in `folder`; -1 if this file system or machine has none.
int open_nameless(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, kMode);
  if (descriptor < 0 || ::access(link_of(descriptor).c_str(), F_OK) == 0) return descriptor;
  ::close(descriptor);
  return -1;
}

int open_named(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
}

/// Copies the whole file `from` to `to` (descriptors). @return 0 or an errno
int copy_all(int from, int to) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 30;
  off_t offset = 0;
  for (;;) {
    const ssize_t count = ::sendfile(to, from, &offset, kAtOnce);
    if (count == 0) return 0;
    if (count < 0 && errno != EINTR) return errno;
  }
}

/// Makes a rename in `folder` survive a loss of power.
void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

bool is_device(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return false;
  if (S_ISDIR(found.st_mode)) return false;
  const bool in_dev = path.starts_with("/dev/") && !path.starts_with("/dev/shm/");
  return !S_ISREG(found.st_mode) || in_dev || path.starts_with("/proc/");
}

ReplacementFile::ReplacementFile(std::string path) : path_(std::move(path)), descriptor_(-1) {
  SMP_REQUIRE_AS(ResourceError, !is_device(path_), "cannot write ", path_,
                 ": it is a device or a pipe, and no file that can be replaced");
  descriptor_ = open_nameless(folder_of(path_));
  if (descriptor_ >= 0) return;
  temporary_ = name_beside(path_);
  descriptor_ = open_named(temporary_);
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

/// Gives the file a temporary name beside its target, since only a rename can replace a file, a
/// link cannot. Where the system forbids this link, the bytes are copied to another, named file.
void ReplacementFile::give_name(Durability durability) {
  const auto name = name_beside(path_);
  const auto link = link_of(descriptor_);
  if (::linkat(AT_FDCWD, link.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
    temporary_ = name;
    return;
  }
  const int named = open_named(name);
  if (named < 0) fail(path_, errno);
  temporary_ = name;
  const int nameless = std::exchange(descriptor_, named);
  const int error = copy_all(nameless, named);
  ::close(nameless);
  if (error != 0) fail(path_, error);
  if (durability == Durability::kSynced) sync();
}

void ReplacementFile::sync() const {
  if (::fsync(descriptor_) != 0) fail(path_, errno);
}

void ReplacementFile::commit(Durability durability) {
  const bool synced = durability == Durability::kSynced;
  if (synced) sync();
  if (temporary_.empty()) give_name(durability);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_, errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, errno);
  temporary_.clear();
  if (synced) sync_folder(folder_of(path_));
}

}  // namespace smp::base
