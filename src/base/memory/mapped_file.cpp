// base/memory/mapped_file.cpp: mmap; the descriptor is not needed after that.
#include "base/memory/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace smp::base {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw ResourceError(concat("cannot ", what, " ", path, ": ", std::strerror(error)));
}

/// Closes a descriptor that mmap no longer needs.
struct OpenFile {
  int number;
  ~OpenFile() { ::close(number); }
};

}  // namespace

MappedFile::MappedFile(const std::string& path, std::size_t size) {
  const OpenFile file{::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
  if (file.number < 0) fail(path, "make", errno);
  // A page that the disk has no room for would end the process when it is written.
  if (const int error = ::posix_fallocate(file.number, 0, static_cast<off_t>(size))) {
    ::unlink(path.c_str());
    fail(path, "make room for", error);
  }
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0);
  if (memory == MAP_FAILED) fail(path, "map", errno);
  bytes_ = {static_cast<std::byte*>(memory), size};
}

MappedFile::~MappedFile() { ::munmap(bytes_.data(), bytes_.size()); }

}  // namespace smp::base
