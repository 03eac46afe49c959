// d2d/collectives/sum_in_place.cpp: see the header.
#include "d2d/collectives/sum_in_place.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/check.h"

namespace smp::d2d {

SumInPlace::SumInPlace(const Communicator& members, SumParts parts, std::int64_t divisor)
    : members_(members),
      divisor_(divisor),
      parts_(std::move(parts)),
      collective_(members_, parts_.call(), members.name_or("a sum of tensors")) {
  // What shares memory with another gets its own before that is sent, not when it is written to.
  for (int position = 0; position < parts_.size(); ++position) {
    for (const auto& piece : parts_[position]) static_cast<void>(piece.storage().mutable_data());
  }
  for (int position = 0; position < members_.size(); ++position) {
    if (position == members_.rank() || parts_[position].empty()) continue;
    collective_.send_parts(CollectivePhase::kExchange, members_.members()[position],
                           parts_[position]);
  }
}

SumInPlace::Pieces SumInPlace::take(CollectivePhase phase, int position) {
  const auto peer = members_.members()[position];
  auto pieces = collective_.take(phase, peer).tensors;
  const auto part = phase == CollectivePhase::kExchange ? members_.rank() : position;
  SMP_ASSERT(parts_.fit(pieces, part), "rank ", peer, " cuts the tensors of a sum otherwise");
  return pieces;
}

void SumInPlace::add() {
  const auto& own = parts_[members_.rank()];
  if (own.empty()) return;
  add_all();
  if (!parts_.for_all()) return;
  for (int position = 0; position < members_.size(); ++position) {
    if (position == members_.rank()) continue;
    collective_.send_parts(CollectivePhase::kResult, members_.members()[position], own);
  }
}

/// Adds up this member's part in order of members. Partial sums lie with the first member's term,
/// the last one where it belongs.
void SumInPlace::add_all() {
  auto& own = parts_[members_.rank()];
  if (sums_wide(own[0].scalar_type())) return add_all_wide();
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

void SumInPlace::add_all_wide() {
  const auto& own = parts_[members_.rank()];
  Pieces sum;
  for (int position = 0; position < members_.size(); ++position) {
    const bool is_own = position == members_.rank();
    SumParts::add_wide(sum, is_own ? own : take(CollectivePhase::kExchange, position));
  }
  const PlainData plain;
  for (std::size_t i = 0; i < sum.size(); ++i) own[i].copy_(sum[i].div_(divisor_));
}

void SumInPlace::finish() {
  for (int position = 0; position < members_.size() && parts_.for_all(); ++position) {
    auto& part = parts_[position];
    if (position == members_.rank() || part.empty()) continue;
    const Pieces sums = take(CollectivePhase::kResult, position);
    const PlainData plain;
    for (std::size_t i = 0; i < part.size(); ++i) part[i].copy_(sums[i]);
  }
  collective_.await_departure();
}

}  // namespace smp::d2d
