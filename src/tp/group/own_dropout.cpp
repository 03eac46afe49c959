// tp/group/own_dropout.cpp: see the header.
#include "tp/group/own_dropout.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#include "tp/group/tensor_parallel.h"

namespace smp::tp {
namespace {

std::uint64_t next_number_of_all() {
  auto* const generator = at::check_generator<at::CPUGeneratorImpl>(base::default_generator());
  const std::lock_guard<std::mutex> lock(generator->mutex_);
  return generator->random64();
}

}  // namespace

OwnNumbers::OwnNumbers(bool draws) {
  const auto& group = TensorParallel::current();
  if (!draws || !group.same_batch()) return;
  scope_.emplace(base::mix_key(next_number_of_all(), static_cast<std::uint64_t>(group.rank())));
}

at::Tensor own_dropout(const at::Tensor& part, double probability, bool training) {
  const OwnNumbers numbers(training && probability > 0 && !part.is_meta());
  return at::dropout(part, probability, training);
}

}  // namespace smp::tp
