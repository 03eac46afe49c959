// A counter that a forked child of this process counts up as well.
#pragma once

#include <sys/mman.h>

#include <memory>

namespace smp {

/// Copies are the same counter.
class SharedCounter {
 public:
  SharedCounter()
      : value_(static_cast<int*>(::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
               [](int* value) { ::munmap(value, sizeof(int)); }) {}
  SharedCounter& operator++() {
    ++*value_;
    return *this;
  }
  operator int() const { return *value_; }  // NOLINT: it is one

 private:
  std::shared_ptr<int> value_;
};

}  // namespace smp
