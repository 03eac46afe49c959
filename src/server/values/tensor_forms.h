// server/values/tensor_forms.h: tensors that are more than their elements in a row: the same one
// twice, strided, sparse. They travel as plain tensors and a note of what they were. Threads: the
// rank's; runs operators of LibTorch, so not in a poll.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "server/protocol/note.h"
#include "server/protocol/tensor_flags.h"

namespace smp::server {

/// Replaces tensors that are not plain by plain ones, appends further ones at the end, and returns
/// the note for restore_forms(); it is empty if nothing was replaced, which is the rule. What is
/// sent shares memory and version counters with what it replaces where that is possible. A tensor
/// that stands in the list before is not sent again.
/// @param kind  "argument" or "output", and
/// @param path  of which module: for messages
/// @param layout  true if the order of elements in memory matters; else they arrive contiguous
/// @throws UnsupportedError  a tensor cannot leave this rank: quantised, nested, of another device,
///                           or sparse in another way than COO.
Note take_forms(std::vector<at::Tensor>& tensors, const char* kind, std::string_view path,
                bool layout = true);

/// Restores `tensors`, as they arrived, to those that take_forms() was given: the same sizes and
/// the same order of elements in memory; gaps between them are shorter.
/// @throws InternalError  take_forms() did not make `note`.
void restore_forms(std::string_view note, std::vector<at::Tensor>& tensors);

/// True if the tensor at `index` also stands in the list before: its gradient is that of the first.
bool stands_before(const std::vector<at::Tensor>& tensors, std::size_t index);

}  // namespace smp::server
