// deferred/example.h: what an operator gives, found out by running it on values that are made up.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace smp::deferred {

/// Values that are made up.
enum class Example {
  kZeros,
  kOnes,
  kIdentity,  ///< ones on the diagonal of matrices, and in vectors
  kDistinct,  ///< 0, 1, 2, …
};

/// Runs `op` on real tensors that stand for the meta tensors among its arguments, and leaves meta
/// tensors of the results' shapes on `stack`; results of kinds that a meta tensor cannot show
/// (sparse ones) are left as they are. Meta tensors that are written keep their identity and get
/// the shape they would have. Nothing is drawn from the program's generators. Memory: what is
/// written, and pages that are read.
/// @param first  tried first; then zeros, ones and the identity, until `op` takes them
/// @throws c10::Error  of the last attempt
void run_by_example(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                    Example first = Example::kZeros);

}  // namespace smp::deferred
