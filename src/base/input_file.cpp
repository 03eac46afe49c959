// base/input_file.cpp: see the header.
#include "base/input_file.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"

namespace smp::base {
namespace {

constexpr std::uint64_t kPart = 256 << 10;  // stays in a core's cache

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

InputFile::InputFile(std::string path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  SMP_REQUIRE(descriptor_ >= 0, "cannot read ", path_, ": ", std::strerror(errno));
  struct stat status = {};
  if (::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) {
    constexpr std::uint64_t kSecond = 1'000'000'000;
    identity_ = {static_cast<std::uint64_t>(status.st_ino),
                 static_cast<std::uint64_t>(status.st_size),
                 static_cast<std::uint64_t>(status.st_mtim.tv_sec) * kSecond +
                     static_cast<std::uint64_t>(status.st_mtim.tv_nsec)};
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
