// trial/operators/write_guard.h: a run that must leave a model as it was may write to it all the
// same (running statistics, counters, weights that are clamped): what it wrote is put back.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "trial/operators/operator_work.h"

namespace torch::nn {
class Module;
}

namespace smp::partitioning {

/// Keeps the values of parameters and buffers from just before their first change, and puts them
/// back in its destructor: same storage, same version. Costs memory only for what is written.
class WriteGuard {
 public:
  /// A set of storages of parameters and buffers.
  using Written = std::unordered_set<const void*>;

  /// @param known  storages whose values are kept at once, without a call of before()
  explicit WriteGuard(const std::vector<torch::nn::Module*>& modules, const Written& known = {});
  ~WriteGuard();
  WriteGuard(const WriteGuard&) = delete;
  WriteGuard& operator=(const WriteGuard&) = delete;

  /// Tells that `op` is about to run; keeps the values that it will change.
  void before(const at::RecordFunction& op, const OperatorKind& kind);

  /// The storages whose values were kept.
  Written written() const;

 private:
  struct Entry {
    std::vector<at::Tensor> tensors;  // that share a storage
    std::vector<at::Tensor> values;   // of these; empty until the first change
  };
  void add(const at::Tensor& tensor);
  void keep(const void* storage);

  std::unordered_map<const void*, Entry> entries_;  // by storage
};

/// Puts the gradients of parameters back in its destructor: the same tensors with the same values,
/// or none. Keeps a copy of each that there is, since backward passes write them where no operator
/// is seen, on threads of autograd.
class GradientGuard {
 public:
  explicit GradientGuard(const std::vector<torch::nn::Module*>& modules);
  ~GradientGuard();
  GradientGuard(const GradientGuard&) = delete;
  GradientGuard& operator=(const GradientGuard&) = delete;

 private:
  struct Kept {
    at::Tensor parameter;
    at::Tensor gradient;  // undefined: it had none
    at::Tensor values;
  };
  std::vector<Kept> kept_;
};

}  // namespace smp::partitioning
