// dp/replica_values.cpp: see the header.
#include "dp/replica_values.h"

#include "d2d/tensor_data.h"
#include "dp/bucket_plan.h"
#include "dp/flat_tensors.h"
#include "dp/shard_plan.h"

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

std::vector<TensorSize> sendable_sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorSize> sizes;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    d2d::check_sendable(tensors[i], i);
    sizes.push_back({tensors[i].scalar_type(), static_cast<std::int64_t>(tensors[i].nbytes())});
  }
  return sizes;
}

}  // namespace

void take_values_of(int root, const d2d::Communicator& replicas,
                    const std::vector<at::Tensor>& tensors, std::int64_t bucket_bytes) {
  if (replicas.size() == 1) return;
  for (const auto& bucket : plan_buckets(sendable_sizes_of(tensors), bucket_bytes)) {
    const auto members = chosen(tensors, bucket);
    const bool gives = replicas.rank() == root;
    const auto values =
        replicas.broadcast_tensor(gives ? flattened(members) : at::Tensor(), {numel_of(members)},
                                  members[0].scalar_type(), replicas.members()[root]);
    if (!gives) unflatten_into(members, values);
  }
}

void take_values_of_owners(const d2d::Communicator& replicas,
                           const std::vector<at::Tensor>& tensors, const std::vector<int>& owners,
                           std::int64_t bucket_bytes) {
  if (replicas.size() == 1) return;
  const auto gather = replicas.named("values of sharded parameters");
  for (const auto& round :
       plan_rounds(sendable_sizes_of(tensors), owners, replicas.size(), bucket_bytes)) {
    std::vector<std::vector<at::Tensor>> of_owner;
    std::vector<std::int64_t> lengths;
    for (const auto& numbers : round.of_owner) {
      of_owner.push_back(chosen(tensors, numbers));
      lengths.push_back(numel_of(of_owner.back()));
    }
    const auto own = static_cast<std::size_t>(replicas.rank());
    const auto rows = gather.all_gather_rows(flattened(of_owner[own], round.dtype), lengths);
    for (std::size_t owner = 0; owner < rows.size(); ++owner) {
      if (owner != own) unflatten_into(of_owner[owner], rows[owner]);
    }
  }
}

}  // namespace smp::dp
