// dp/replica_values.cpp: see the header.
#include "dp/replica_values.h"

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

std::int64_t numel_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t numel = 0;
  for (const auto& tensor : tensors) numel += tensor.numel();
  return numel;
}

}  // namespace

void take_values_of(int root, const d2d::Communicator& replicas,
                    const std::vector<at::Tensor>& tensors, std::int64_t bucket_bytes) {
  if (replicas.size() == 1) return;
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
