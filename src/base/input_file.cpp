// base/input_file.cpp: see the header.
#include "base/input_file.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace smp::base {
namespace {

constexpr std::uint64_t kPart = 256 << 10;  // stays in a core's cache

std::optional<InputFile::Identity> identity_of(int file) {
  struct stat status = {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  constexpr std::uint64_t kSecond = 1'000'000'000;
  return InputFile::Identity{static_cast<std::uint64_t>(status.st_ino),
                             static_cast<std::uint64_t>(status.st_size),
                             static_cast<std::uint64_t>(status.st_mtim.tv_sec) * kSecond +
                                 static_cast<std::uint64_t>(status.st_mtim.tv_nsec)};
}

/// True if the system has all of these bytes of the file in memory; false also where it does not
/// say so (before Linux 6.5), and of files of others that this process may not write.
bool is_cached(int file, std::uint64_t offset, std::uint64_t size) {
  constexpr long kCachestat = 451;  // which headers of older systems lack
  constexpr std::uint64_t kPageBytes = 4096;
  struct {
    std::uint64_t offset, size;
  } const range{offset, size};
  struct {
    std::uint64_t cached, dirty, in_writing, evicted, lately_evicted;
  } pages{};
  if (::sysconf(_SC_PAGESIZE) != kPageBytes) return false;
  if (::syscall(kCachestat, file, &range, &pages, 0) != 0) return false;
  const auto touched = (offset + size - 1) / kPageBytes - offset / kPageBytes + 1;
  return pages.cached >= touched;
}

/// Where bytes go that nobody wants.
class NullDevice {
 public:
  NullDevice() = default;
  ~NullDevice() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  NullDevice(const NullDevice&) = delete;
  NullDevice& operator=(const NullDevice&) = delete;

  /// Takes bytes of `file` from `at` on, and moves `at` behind them; as sendfile() does.
  ssize_t take(int file, off_t& at, std::size_t count) const {
    return ::sendfile(descriptor_, file, &at, count);
  }

 private:
  int descriptor_ = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
};

}  // namespace

/// Opening a pipe must not wait for who writes it; of files the flag changes nothing.
InputFile::InputFile(std::string path)
    : path_(std::move(path)),
      descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  SMP_REQUIRE(descriptor_ >= 0, "cannot read ", path_, ": ", std::strerror(errno));
  if (const auto identity = identity_of(descriptor_)) {
    identity_ = *identity;
    return;
  }
  ::close(descriptor_);
  throw UsageError(concat("cannot read ", path_, ": it is no file"));
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read_at(std::uint64_t offset, void* to, std::size_t size) const {
  auto* at = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t count = ::pread(descriptor_, at, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    SMP_REQUIRE(count >= 0, "cannot read ", path_, ": ", std::strerror(errno));
    SMP_REQUIRE(count > 0, "cannot read ", path_, ": it ends at byte ", offset, ", ", size,
                " bytes too early");
    at += count;
    offset += static_cast<std::uint64_t>(count);
    size -= static_cast<std::size_t>(count);
  }
}

bool InputFile::has_changed() const { return identity_of(descriptor_) != identity_; }

void InputFile::read_parts(std::uint64_t offset, std::uint64_t size,
                           const std::function<void(std::string_view)>& take) const {
  std::vector<char> part(static_cast<std::size_t>(std::min(size, kPart)));
  for (std::uint64_t done = 0; done < size;) {
    const auto count = static_cast<std::size_t>(std::min(size - done, kPart));
    read_at(offset + done, part.data(), count);
    take({part.data(), count});
    done += count;
  }
}

void InputFile::require_readable(std::uint64_t offset, std::uint64_t size) const {
  const bool inside = offset + size <= identity_[1] && !has_changed();
  if (size == 0 || (inside && is_cached(descriptor_, offset, size))) return;
  const NullDevice null;
  auto at = static_cast<off_t>(offset);
  const auto end = static_cast<off_t>(offset + size);
  while (at < end) {
    const ssize_t count = null.take(descriptor_, at, static_cast<std::size_t>(end - at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;  // reading says why, or can what this call cannot
  }
  read_parts(static_cast<std::uint64_t>(at), static_cast<std::uint64_t>(end - at),
             [](std::string_view) {});
}

}  // namespace smp::base
