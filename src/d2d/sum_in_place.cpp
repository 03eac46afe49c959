// d2d/sum_in_place.cpp: see the header.
#include "d2d/sum_in_place.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "base/check.h"
#include "d2d/tensor_data.h"

namespace smp::d2d {
namespace {

/// Outside of autograd and of the modes of the caller. Versions are not counted here: one part of a
/// tensor is written while others read another. What anybody else writes is still reported.
struct PlainData {
  c10::InferenceMode normal{false};
  at::AutoDispatchBelowADInplaceOrView no_history;
};

std::int64_t count_elements(const std::vector<at::Tensor>& tensors) {
  std::int64_t elements = 0;
  for (const auto& tensor : tensors) elements += tensor.numel();
  return elements;
}

/// The elements of a tensor in a row.
at::Tensor row_of(const at::Tensor& tensor) {
  SMP_ASSERT(is_plain(tensor), "a sum in place of a tensor whose elements are not adjacent");
  return detached(tensor).view({-1});
}

/// In which members must agree: the shape of one tensor, the elements of several.
CollectiveCall sum_of(std::int64_t elements, const std::vector<at::Tensor>& tensors) {
  const auto dtype = tensors.at(0).scalar_type();
  const auto sizes = tensors.size() == 1 ? tensors[0].sizes() : at::IntArrayRef(elements);
  return {CollectiveKind::kAllReduce, -1, static_cast<std::int32_t>(dtype),
          std::string(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof sizes[0])};
}

}  // namespace

SumInPlace::SumInPlace(const Communicator& members, const std::vector<at::Tensor>& tensors,
                       std::int64_t divisor)
    : members_(members),
      elements_(count_elements(tensors)),
      divisor_(divisor),
      collective_(*members.owner_, members.lane_, sum_of(elements_, tensors),
                  members.name_or("a sum of tensors")) {
  const PlainData plain;
  std::vector<at::Tensor> rows;
  rows.reserve(tensors.size());
  for (const auto& tensor : tensors) rows.push_back(row_of(tensor));
  for (int position = 0; position < members_.size(); ++position) {
    parts_.push_back(cut(rows, position));
    const auto& part = parts_.back();
    if (position != members_.rank() && !part.empty()) {
      collective_.send_parts(CollectivePhase::kExchange, members_.members()[position], part);
    }
  }
}

SumInPlace::Pieces SumInPlace::cut(const std::vector<at::Tensor>& rows, int position) const {
  const std::int64_t first = elements_ * position / members_.size();
  const std::int64_t last = elements_ * (position + 1) / members_.size();
  Pieces pieces;
  std::int64_t start = 0;  // of the row
  for (const auto& row : rows) {
    const auto begin = std::max(first, start), end = std::min(last, start + row.numel());
    if (begin < end) pieces.push_back(row.narrow(0, begin - start, end - begin));
    start += row.numel();
  }
  return pieces;
}

SumInPlace::Pieces SumInPlace::take(CollectivePhase phase, int position) {
  const auto peer = members_.members()[position];
  auto pieces = collective_.take(phase, peer).tensors;
  const auto own =
      static_cast<std::size_t>(phase == CollectivePhase::kExchange ? members_.rank() : position);
  const auto fits = [](const at::Tensor& left, const at::Tensor& right) {
    return left.defined() && left.sizes() == right.sizes() && left.dtype() == right.dtype();
  };
  SMP_ASSERT(std::equal(pieces.begin(), pieces.end(), parts_[own].begin(), parts_[own].end(), fits),
             "rank ", peer, " cuts the tensors of a sum otherwise");
  return pieces;
}

void SumInPlace::add() {
  const auto& own = parts_[static_cast<std::size_t>(members_.rank())];
  if (own.empty()) return;
  add_all();
  for (int position = 0; position < members_.size(); ++position) {
    if (position == members_.rank()) continue;
    collective_.send_parts(CollectivePhase::kResult, members_.members()[position], own);
  }
}

/// What has been added up lies with the first member's term, and at last where it belongs.
void SumInPlace::add_all() {
  auto& own = parts_[static_cast<std::size_t>(members_.rank())];
  Pieces sum;
  for (int position = 0; position < members_.size(); ++position) {
    const bool is_own = position == members_.rank();
    Pieces term = is_own ? own : take(CollectivePhase::kExchange, position);
    const PlainData plain;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      auto& place = position + 1 == members_.size() ? own[i] : sum[i];
      at::add_out(place, sum[i], term[i]);
    }
    if (position == 0) sum = std::move(term);
  }
  if (divisor_ == 1) return;  // integers cannot be divided in place
  const PlainData plain;
  for (auto& piece : own) piece.div_(divisor_);
}

void SumInPlace::finish() {
  for (int position = 0; position < members_.size(); ++position) {
    auto& part = parts_[static_cast<std::size_t>(position)];
    if (position == members_.rank() || part.empty()) continue;
    const Pieces sums = take(CollectivePhase::kResult, position);
    const PlainData plain;
    for (std::size_t i = 0; i < part.size(); ++i) part[i].copy_(sums[i]);
  }
  collective_.await_departure();
}

}  // namespace smp::d2d
