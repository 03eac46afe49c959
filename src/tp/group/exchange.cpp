// tp/group/exchange.cpp: communicators know the first dimension only.
#include "tp/group/exchange.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "tp/group/slice_part.h"

namespace smp::tp {
namespace {

/// Cuts `tensor` into `parts` equal parts along `from` and joins them along `to`.
at::Tensor restack(const at::Tensor& tensor, int parts, std::int64_t from, std::int64_t to) {
  if (from == to) return tensor;
  const auto size = tensor.size(from) / parts;  // may be 0
  std::vector<at::Tensor> all;
  for (int i = 0; i < parts; ++i) all.push_back(tensor.narrow(from, i * size, size));
  return at::cat(all, to);
}

}  // namespace

Exchange Exchange::dual() const {
  switch (kind_) {
    case Kind::kGather:
      return reduce_scatter(split_dim_);
    case Kind::kReduceScatter:
      return gather(split_dim_);
    case Kind::kAllToAll:
      return all_to_all(merge_dim_, split_dim_);
    case Kind::kSum:
      return identity();
    case Kind::kOwnPart:
      return join_parts(split_dim_);
    case Kind::kJoinParts:
      return own_part(split_dim_);
    case Kind::kIdentity:
      break;
  }
  return sum();
}

Exchange Exchange::of(std::int64_t num_dims) const {
  if (kind_ == Kind::kSum || kind_ == Kind::kIdentity) return *this;
  return {kind_, at::maybe_wrap_dim(split_dim_, num_dims),
          at::maybe_wrap_dim(merge_dim_, num_dims)};
}

std::int64_t Exchange::cut_dim() const noexcept {
  const bool cuts =
      kind_ == Kind::kReduceScatter || kind_ == Kind::kAllToAll || kind_ == Kind::kOwnPart;
  return cuts ? split_dim_ : -1;
}

Traffic Exchange::traffic(int size, double bytes) const noexcept {
  const double others = size - 1;
  switch (kind_) {
    case Kind::kGather:
    case Kind::kJoinParts:
      return {others * bytes, 1};
    case Kind::kReduceScatter:
    case Kind::kAllToAll:
      return {others / size * bytes, 1};
    case Kind::kSum:
      return {2 * others / size * bytes, 2};
    case Kind::kOwnPart:
    case Kind::kIdentity:
      break;
  }
  return {};
}

Traffic Exchange::traffic_of_dual(int size, double bytes) const noexcept {
  const bool grows = kind_ == Kind::kGather || kind_ == Kind::kJoinParts;
  const bool shrinks = kind_ == Kind::kReduceScatter || kind_ == Kind::kOwnPart;
  return dual().traffic(size, grows ? bytes * size : shrinks ? bytes / size : bytes);
}

at::Tensor Exchange::run(const d2d::Communicator& ranks, const at::Tensor& tensor) const {
  const at::NoGradGuard no_history;
  const int size = ranks.size();
  switch (kind_) {
    case Kind::kGather:
    case Kind::kJoinParts:
      return restack(ranks.all_gather(tensor), size, 0, merge_dim_);
    case Kind::kReduceScatter:
      return ranks.reduce_scatter(restack(tensor, size, split_dim_, 0));
    case Kind::kAllToAll:
      return restack(ranks.all_to_all(restack(tensor, size, split_dim_, 0)), size, 0, merge_dim_);
    case Kind::kSum:
      return ranks.all_reduce(tensor);
    case Kind::kOwnPart:
      return part_of(tensor, split_dim_, tensor.size(split_dim_) / size, ranks.rank());
    case Kind::kIdentity:
      break;
  }
  return tensor.detach().clone();
}

at::Tensor Exchange::run_alone(int size, const at::Tensor& tensor) const {
  switch (kind_) {
    case Kind::kGather:
    case Kind::kJoinParts:
      return at::cat(std::vector<at::Tensor>(static_cast<std::size_t>(size), tensor), merge_dim_);
    case Kind::kReduceScatter:
      return tensor.narrow(split_dim_, 0, tensor.size(split_dim_) / size) * size;
    case Kind::kAllToAll: {
      const auto part = tensor.narrow(split_dim_, 0, tensor.size(split_dim_) / size);
      return at::cat(std::vector<at::Tensor>(static_cast<std::size_t>(size), part), merge_dim_);
    }
    case Kind::kSum:
      return tensor * size;
    case Kind::kOwnPart:
      return tensor.narrow(split_dim_, 0, tensor.size(split_dim_) / size).clone();
    case Kind::kIdentity:
      break;
  }
  return tensor.clone();
}

}  // namespace smp::tp
