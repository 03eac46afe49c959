// d2d/collectives/sum_parts.cpp: see the header.
#include "d2d/collectives/sum_parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "d2d/tensors/tensor_data.h"

namespace smp::d2d {
namespace {

std::int64_t count_elements(const std::vector<at::Tensor>& tensors) {
  std::int64_t elements = 0;
  for (const auto& tensor : tensors) elements += tensor.numel();
  return elements;
}

/// Returns the elements of a tensor in a row.
at::Tensor row_of(const at::Tensor& tensor) {
  SMP_ASSERT(is_plain(tensor), "a sum in place of a tensor whose elements are not adjacent");
  return detached(tensor).view({-1});
}

/// Returns elements [first, last) of all rows together.
SumParts::Pieces cut(const std::vector<at::Tensor>& rows, std::int64_t first, std::int64_t last) {
  SumParts::Pieces pieces;
  std::int64_t start = 0;  // of the row
  for (const auto& row : rows) {
    const auto begin = std::max(first, start), end = std::min(last, start + row.numel());
    if (begin < end) pieces.push_back(row.narrow(0, begin - start, end - begin));
    start += row.numel();
  }
  return pieces;
}

}  // namespace

SumParts::SumParts(CollectiveKind kind, const std::vector<at::Tensor>& tensors) {
  const auto elements = count_elements(tensors);
  const auto dtype = tensors.at(0).scalar_type();
  const auto sizes = tensors.size() == 1 ? tensors[0].sizes() : at::IntArrayRef(elements);
  call_ = {
      kind, -1, static_cast<std::int32_t>(dtype),
      std::string(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof sizes[0])};
}

SumParts::SumParts(const std::vector<at::Tensor>& tensors, int members)
    : SumParts(CollectiveKind::kAllReduce, tensors) {
  const PlainData plain;
  const auto elements = count_elements(tensors);
  std::vector<at::Tensor> rows;
  rows.reserve(tensors.size());
  for (const auto& tensor : tensors) rows.push_back(row_of(tensor));
  for (std::int64_t position = 0; position < members; ++position) {
    parts_.push_back(cut(rows, elements * position / members, elements * (position + 1) / members));
  }
}

SumParts SumParts::of_owners(const std::vector<std::vector<at::Tensor>>& tensors) {
  std::vector<at::Tensor> all;
  for (const auto& of_owner : tensors) all.insert(all.end(), of_owner.begin(), of_owner.end());
  SumParts parts(CollectiveKind::kReduceScatter, all);
  const PlainData plain;
  for (const auto& of_owner : tensors) {
    auto& pieces = parts.parts_.emplace_back();
    for (const auto& tensor : of_owner) {
      if (tensor.numel() > 0) pieces.push_back(row_of(tensor));
    }
  }
  return parts;
}

void SumParts::add_wide(Pieces& sum, const Pieces& term) {
  const PlainData plain;
  const bool first = sum.empty();
  for (std::size_t i = 0; i < term.size(); ++i) {
    if (first) {
      sum.push_back(term[i].to(at::kFloat));
    } else {
      sum[i].add_(term[i]);
    }
  }
}

bool SumParts::fit(const Pieces& pieces, int position) const {
  const auto same = [](const at::Tensor& left, const at::Tensor& right) {
    return left.defined() && left.sizes() == right.sizes() && left.dtype() == right.dtype();
  };
  const auto& part = (*this)[position];
  return std::equal(pieces.begin(), pieces.end(), part.begin(), part.end(), same);
}

}  // namespace smp::d2d
