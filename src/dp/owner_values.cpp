// dp/owner_values.cpp: see the header.
#include "dp/owner_values.h"

#include <utility>

#include "dp/bucket_plan.h"
#include "dp/shard_plan.h"

namespace smp::dp {
namespace {

constexpr std::size_t kRoundsUnderWay = 3;

std::vector<at::Tensor> of_others(const std::vector<at::Tensor>& tensors,
                                  const std::vector<int>& owners, int own) {
  std::vector<at::Tensor> others;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (owners[i] != own) others.push_back(tensors[i]);
  }
  return others;
}

/// Bumps the version of a tensor, so that a backward that saved it notices the change.
void note_written(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

OwnerValues::Round::Round(const d2d::Communicator& replicas, std::vector<at::Tensor> tensors,
                          std::vector<int> owners)
    : taken_(of_others(tensors, owners, replicas.rank())),
      rows_(std::move(tensors), std::move(owners)),
      gather_(replicas, rows_.parts(replicas.size()), "values of sharded parameters") {}

void OwnerValues::Round::finish() {
  gather_.finish();
  rows_.write_back();
  for (const auto& tensor : taken_) note_written(tensor);
}

void OwnerValues::take(const d2d::Communicator& replicas, const std::vector<at::Tensor>& tensors,
                       const std::vector<int>& owners) {
  if (replicas.size() == 1) return;
  for (const auto& round : plan_rounds(sizes_of(tensors), owners, replicas.size(), round_bytes_)) {
    std::vector<at::Tensor> travelling;
    std::vector<int> owners_of_these;
    for (const auto& of_owner : round.of_owner) {
      for (const auto number : of_owner) {
        travelling.push_back(tensors[number]);
        owners_of_these.push_back(owners[number]);
      }
    }
    if (under_way_.size() == kRoundsUnderWay) finish_first();
    under_way_.emplace_back(replicas, std::move(travelling), std::move(owners_of_these));
  }
}

void OwnerValues::finish_first() {
  under_way_.front().finish();
  under_way_.pop_front();
}

void OwnerValues::finish() {
  while (!under_way_.empty()) finish_first();
}

}  // namespace smp::dp
