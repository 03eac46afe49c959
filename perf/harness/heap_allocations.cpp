// perf/harness/heap_allocations.cpp: a counter of the thread, and an operator new that raises it.
#include "heap_allocations.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>

namespace smp::perf {
namespace {

thread_local std::int64_t counted = -1;  // nobody asks

std::int64_t allocations_of(const std::function<void()>& run) {
  counted = 0;
  run();
  return std::exchange(counted, -1);
}

}  // namespace

double least_allocations(int runs, const std::function<void()>& run) {
  auto least = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < runs; ++i) least = std::min(least, allocations_of(run));
  return static_cast<double>(least);
}

}  // namespace smp::perf

// GCC takes the pair below for a mismatch once it has inlined one of the two.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(std::size_t size) {
  if (smp::perf::counted >= 0) ++smp::perf::counted;
  if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
