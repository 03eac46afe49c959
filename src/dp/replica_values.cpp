// dp/replica_values.cpp: see the header.
#include "dp/replica_values.h"

#include "d2d/tensor_data.h"
#include "dp/bucket_plan.h"
#include "dp/flat_tensors.h"

namespace smp::dp {

void take_values_of_first(const d2d::Communicator& replicas, const std::vector<at::Tensor>& tensors,
                          std::int64_t bucket_bytes) {
  if (replicas.size() == 1) return;
  std::vector<TensorSize> sizes;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    d2d::check_sendable(tensors[i], i);
    sizes.push_back({tensors[i].scalar_type(), static_cast<std::int64_t>(tensors[i].nbytes())});
  }
  for (const auto& bucket : plan_buckets(sizes, bucket_bytes)) {
    std::vector<at::Tensor> members;
    std::int64_t numel = 0;
    for (const auto i : bucket) {
      members.push_back(tensors[i]);
      numel += tensors[i].numel();
    }
    const bool first = replicas.rank() == 0;
    const auto values =
        replicas.broadcast_tensor(first ? flattened(members) : at::Tensor(), {numel},
                                  members[0].scalar_type(), replicas.members()[0]);
    if (!first) unflatten_into(members, values);
  }
}

}  // namespace smp::dp
