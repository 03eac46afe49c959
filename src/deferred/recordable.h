// deferred/recordable.h: which operators are put off, and which are carried out at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>
#include <vector>

namespace smp::deferred {

/// True if `op` with these arguments may be written down in a recipe: its results' shapes are told
/// right without values, it writes what its schema says or what written_unsaid() names, and it
/// fails with none of the values that it may get (but for indices that are out of range). Whatever
/// is not known to be so is not.
bool is_recordable(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// Returns the names of all operators that is_recordable() knows, each of which stands for its
/// overloads and its form in place. Views are put off as well, whatever they are called.
std::vector<std::string_view> recordable_names();

/// Returns the tensors that `op` writes and its schema does not name as written: running
/// statistics.
std::vector<at::Tensor> written_unsaid(const c10::OperatorHandle& op,
                                       const torch::jit::Stack& stack);

/// True if nothing is left after `op` of the values of its first tensor: it fills that, or asks for
/// its shape only.
bool ignores_first_values(const c10::OperatorHandle& op);

/// True if `op` uses shapes and types alone of tensors that are not its first: view_as() and such.
bool asks_for_shapes_of_others(const c10::OperatorHandle& op);

}  // namespace smp::deferred
