// base/memory/shared_memory.cpp: memfd_create, and the door to it in /proc.
#include "base/memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace smp::base {
namespace {

/// Returns the number of the file behind a descriptor, unique among files without a name; 0: none.
std::uint64_t file_of(int descriptor) noexcept {
  struct stat about {};
  return ::fstat(descriptor, &about) == 0 ? about.st_ino : 0;
}

/// False if the kernel would end a process that makes a file so long (RLIMIT_FSIZE, `ulimit -f`).
bool may_be_so_long(std::size_t bytes) noexcept {
  rlimit files{};
  return ::getrlimit(RLIMIT_FSIZE, &files) != 0 || bytes <= files.rlim_cur;
}

/// Closes a descriptor without changing errno.
void close_quietly(int descriptor) noexcept {
  const int error = errno;
  ::close(descriptor);
  errno = error;
}

}  // namespace

std::optional<SharedMemory> SharedMemory::map(int descriptor, std::size_t bytes,
                                              Access access) noexcept {
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const memory = ::mmap(nullptr, bytes, protection, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return std::nullopt;
  return SharedMemory({static_cast<std::byte*>(memory), bytes},
                      {::getpid(), descriptor, file_of(descriptor)});
}

std::optional<SharedMemory> SharedMemory::make(std::size_t bytes) noexcept {
  if (!may_be_so_long(bytes)) {
    errno = EFBIG;
    return std::nullopt;
  }
  const int descriptor = ::memfd_create("smp", MFD_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  auto made = ::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0
                  ? map(descriptor, bytes, Access::kReadAndWrite)
                  : std::nullopt;
  if (!made) close_quietly(descriptor);
  return made;
}

std::optional<SharedMemory> SharedMemory::open(const Address& address, std::size_t bytes,
                                               Access access) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%lld/fd/%lld", static_cast<long long>(address.process),
                static_cast<long long>(address.descriptor));
  const int descriptor = ::open(path, (access == Access::kRead ? O_RDONLY : O_RDWR) | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  const bool same = file_of(descriptor) == address.file;
  if (!same) errno = ESTALE;
  auto opened = same ? map(descriptor, bytes, access) : std::nullopt;
  close_quietly(descriptor);
  if (opened) opened->address_ = {address.process, -1, address.file};
  return opened;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), address_(std::exchange(other.address_, {})) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(address_, other.address_);
  return *this;
}

SharedMemory::~SharedMemory() {
  stop_offering();
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void SharedMemory::keep_from_dumps() const noexcept {
  static_cast<void>(::madvise(bytes_.data(), bytes_.size(), MADV_DONTDUMP));
}

void SharedMemory::stop_offering() noexcept {
  if (address_.descriptor >= 0) ::close(static_cast<int>(address_.descriptor));
  address_.descriptor = -1;
}

}  // namespace smp::base
