// partition/saved_tensors.h: what autograd keeps for backward (App. C.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace smp::partition {

/// Visits the tensors that the nodes of the graph below `roots` keep, in the order in which the
/// nodes were made. Nodes of types that do not tell (written by hand in C++) keep nothing here.
/// @param visit  gets the node's sequence number, as of at::sequence_number, and the tensor.
void visit_saved_tensors(const std::vector<at::Tensor>& roots,
                         const std::function<void(std::uint64_t, const at::Tensor&)>& visit);

}  // namespace smp::partition
