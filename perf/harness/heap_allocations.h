// perf/harness/heap_allocations.h: how often a thread asks for memory by operator new, LibTorch
// among those who ask. The bytes of tensors come from elsewhere. A program that links
// heap_allocations.cpp gets an operator new that can count; while it does not, that costs one look
// at a flag.
#pragma once

#include <functional>

namespace smp::perf {

/// Of the calling thread while `run` runs, on other fibers of it too: the least of `runs` of them,
/// so that no container that grows is counted.
double least_allocations(int runs, const std::function<void()>& run);

}  // namespace smp::perf
