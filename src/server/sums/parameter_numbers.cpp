// server/sums/parameter_numbers.cpp: lasting numbers below, those of the running step above.
#include "server/sums/parameter_numbers.h"

namespace smp::server {

ParameterNumber ParameterNumbers::place(const at::Tensor& parameter) {
  forget_unplaced();
  const auto number = of(parameter);
  placed_ = size();
  return number;
}

ParameterNumber ParameterNumbers::of(const at::Tensor& leaf) {
  const void* const identity = leaf.unsafeGetTensorImpl();
  const auto [found, inserted] = numbers_.emplace(identity, size());
  if (inserted) leaves_.push_back(identity);
  return found->second;
}

void ParameterNumbers::forget_unplaced() {
  for (; size() > placed_; leaves_.pop_back()) numbers_.erase(leaves_.back());
}

void ParameterNumbers::clear() {
  numbers_.clear();
  leaves_.clear();
  placed_ = 0;
}

}  // namespace smp::server
