// dp/replica_values.cpp: see the header.
#include "dp/replica_values.h"

#include <ATen/core/grad_mode.h>

#include "d2d/tensors/overlap.h"
#include "dp/bucket_plan.h"
#include "dp/flat_tensors.h"

namespace smp::dp {
namespace {

std::vector<at::Tensor> chosen(const std::vector<at::Tensor>& tensors,
                               const std::vector<std::size_t>& numbers) {
  std::vector<at::Tensor> some;
  for (const auto number : numbers) some.push_back(tensors[number]);
  return some;
}

/// Returns the parts of `tensors` that can be written: of an expanded one its first row.
std::vector<at::Tensor> unrepeated(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const auto& tensor : tensors) {
    const bool dense = tensor.layout() == at::kStrided;
    parts.push_back(dense ? d2d::unrepeated(tensor, tensor) : tensor);
  }
  return parts;
}

std::int64_t numel_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t numel = 0;
  for (const auto& tensor : tensors) numel += tensor.numel();
  return numel;
}

}  // namespace

void take_values_of(int root, const d2d::Communicator& replicas, const std::vector<at::Tensor>& all,
                    std::int64_t bucket_bytes) {
  if (replicas.size() == 1) return;
  const auto tensors = unrepeated(all);
  for (const auto& bucket : plan_buckets(sizes_of(tensors), bucket_bytes)) {
    const auto members = chosen(tensors, bucket);
    const bool gives = replicas.rank() == root;
    const auto values =
        replicas.broadcast_tensor(gives ? flattened(members) : at::Tensor(), {numel_of(members)},
                                  members[0].scalar_type(), replicas.members()[root]);
    if (!gives) unflatten_into(members, values);
  }
}

}  // namespace smp::dp
