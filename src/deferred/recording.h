// deferred/recording.h: one run of an operator, turned into a step of recipes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "deferred/delayed_tensors.h"
#include "deferred/recipe.h"

namespace smp::deferred {

/// Turns one run of an operator on delayed tensors into a step of their recipes: made with its
/// arguments in `stack`, then run(), then publish().
class Recording {
 public:
  Recording(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  /// Runs the operator on shapes alone. Returns false if LibTorch, which looks less closely there,
  /// would refuse it with values. @throws c10::Error  LibTorch cannot, or the arguments are wrong
  bool run();
  /// Hands the recipe to all tensors that were made or written. Returns false if there are none.
  bool publish(const std::shared_ptr<Construction>& construction);

  const std::shared_ptr<Operation>& operation() const { return operation_; }
  /// Returns the tensor that a random operator fills.
  const at::Tensor& filled() const { return filled_; }

 private:
  void take_operands();
  void take_device();
  void drop_what_is_ignored();
  bool writes_overlap() const;
  ContentPtr last_result() const;
  void note(const at::Tensor& tensor, std::size_t index,
            const std::shared_ptr<Construction>& construction);

  torch::jit::Stack& stack_;
  std::size_t first_;
  std::shared_ptr<Operation> operation_;
  std::vector<at::Tensor> operands_;
  at::Tensor filled_;
};

}  // namespace smp::deferred
