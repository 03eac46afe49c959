// module/placement.cpp: the scope that routed modules note down when they are made.
#include "smp/placement.h"

#include <utility>

#include "smp/call.h"

namespace smp {
namespace {

thread_local std::optional<int> current_partition;

}  // namespace

partition::partition(int pp_rank) : outer_(std::exchange(current_partition, pp_rank)) {}
partition::~partition() { current_partition = outer_; }

RoutedBase::RoutedBase() : smp_pin(current_partition) {}
RoutedBase::~RoutedBase() = default;

}  // namespace smp
