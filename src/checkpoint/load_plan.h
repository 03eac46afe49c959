// checkpoint/load_plan.h: which of the tensors that are offered goes where in a module, and whether
// it can.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/exchange.h"
#include "checkpoint/module_tensors.h"
#include "checkpoint/tensor_info.h"
#include "smp/state_dict.h"

namespace smp::checkpoints {

struct LoadPlan {
  /// For each tensor of the module, the index in `offered` of the tensor loaded into it, if any.
  std::vector<std::optional<std::size_t>> sources;
  /// For each tensor of the module, the indices in `offered` of all its names.
  std::vector<std::vector<std::size_t>> names;
  LoadResult result;
};

/// Decides which offered tensor goes into which tensor of the module, from names, shapes and dtypes
/// alone.
/// @param source  the origin of `offered`, for messages
/// @throws UsageError  everything that PyTorch's load_state_dict refuses, in one text.
LoadPlan plan_load(const std::vector<NamedTensor>& tensors, const std::vector<TensorInfo>& offered,
                   bool strict, const std::string& source);

/// Returns true if tensors of `type` cannot hold all that tensors of `other` do. Types of 8 bits
/// and large unsigned ones are compared by their size.
bool holds_less(c10::ScalarType type, c10::ScalarType other);

/// Warns where `plan` loads values into tensors of a type that holds less: how many of `tensors`,
/// from which types to which, and how far numbers may be off.
/// @param source  the origin of `offered`, as in other messages of the load
void warn_of_narrowing(const std::vector<NamedTensor>& tensors,
                       const std::vector<TensorInfo>& offered, const LoadPlan& plan,
                       const std::string& source);

/// Returns why `tensor`, called `name`, has no values that could be loaded or saved; empty if it
/// has.
std::string problem_with_values(const std::string& name, const at::Tensor& tensor);

/// Returns why `tensor`, called `name`, cannot be written; empty if it can. Values do not count.
std::string problem_with_target(const std::string& name, const at::Tensor& tensor);

/// Returns why one of `tensors`, elements of which share memory, cannot take the values that
/// `offer` has for it, because these differ there; empty if all can. Reads them.
std::string problem_with_repeats(const std::vector<NamedTensor>& tensors, const Offer& offer);

/// Returns where `offer` has different values for the names of one tensor; empty if nowhere. Reads
/// tensors of which it has several names.
std::string problem_with_ties(const std::vector<NamedTensor>& tensors, const Offer& offer);

/// Returns the text for a tensor of the model with two values.
/// @param difference  where they differ
std::string two_values_text(const std::string& name, const std::string& other,
                            const std::string& difference);

/// Returns the memory of a module's tensor if values like `info` may be read into it as they come,
/// converted to its dtype; else an undefined tensor. Whoever saved the tensor for a backward sees
/// by its version that it was written.
at::Tensor memory_for(const TensorInfo& info, const at::Tensor& tensor);

/// Puts what is offered under that number into a module's tensor, as store() does, and straight
/// into its memory where that can be.
void load_offered(const at::Tensor& tensor, const Offer& offer, std::size_t number);

/// Copies `values` into a module's tensor, converting its dtype. Elements that share memory are
/// written once.
void store(const at::Tensor& tensor, const at::Tensor& values);

}  // namespace smp::checkpoints
