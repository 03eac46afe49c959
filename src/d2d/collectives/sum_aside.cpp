// d2d/collectives/sum_aside.cpp: see the header.
#include "d2d/collectives/sum_aside.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/check.h"

namespace smp::d2d {
namespace {

/// Returns the same memory under version counters of its own, since a write to a tensor of a sum
/// that is given up is no mistake.
SumParts unwatched(SumParts parts) {
  for (int position = 0; position < parts.size(); ++position) {
    for (auto& piece : parts[position]) piece = piece.variable_data();
  }
  return parts;
}

}  // namespace

SumAside::SumAside(const Communicator& members, SumParts parts, std::int64_t divisor,
                   std::uint64_t number, SumCodec* codec)
    : members_(members),
      divisor_(divisor),
      codec_(codec),
      parts_(unwatched(std::move(parts))),
      collective_(members_, number, parts_.call(), members.name_or("a sum of tensors")) {
  for (int position = 0; position < members_.size(); ++position) {
    if (position == members_.rank() || parts_[position].empty()) continue;
    send(CollectivePhase::kExchange, position, parts_[position]);
  }
}

/// Sends `pieces`, which are those of some part, to the member at `position`.
void SumAside::send(CollectivePhase phase, int position, const Pieces& pieces) {
  const auto peer = members_.members()[position];
  if (codec_ == nullptr) return collective_.send_parts(phase, peer, pieces);
  const bool sum = phase == CollectivePhase::kResult;
  const auto encoded = sum ? pieces : codec_->encode(pieces, position, sum);
  collective_.send_parts(phase, peer, encoded);
}

SumAside::Pieces SumAside::take(CollectivePhase phase, int position) {
  const auto peer = members_.members()[position];
  const bool sum = phase == CollectivePhase::kResult;
  const auto part = sum ? position : members_.rank();
  auto pieces = collective_.take(phase, peer).tensors;
  if (codec_ != nullptr) pieces = codec_->decode(pieces, parts_[part], part, sum);
  SMP_ASSERT(parts_.fit(pieces, part), "rank ", peer, " cuts the tensors of a sum otherwise");
  return pieces;
}

bool SumAside::can_add() const {
  if (parts_[members_.rank()].empty()) return true;
  for (int position = 0; position < members_.size(); ++position) {
    if (position == members_.rank()) continue;
    if (!collective_.has_come(CollectivePhase::kExchange, members_.members()[position])) {
      return false;
    }
  }
  return true;
}

void SumAside::add() {
  SMP_ASSERT(!added_, "a sum is added up twice");
  added_ = true;
  if (parts_[members_.rank()].empty()) return;
  sum_ = sum_of_all();
  if (parts_.for_all()) send_sum();
}

void SumAside::send_sum() {
  Pieces sent = sum_;
  if (codec_ != nullptr) {  // all get what the others get
    sent = codec_->encode(sum_, members_.rank(), true);
    sum_ = codec_->decode(sent, sum_, members_.rank(), true);
  }
  for (int position = 0; position < members_.size(); ++position) {
    if (position != members_.rank()) send(CollectivePhase::kResult, position, sent);
  }
}

/// Returns this member's own term; it must not be written to unless it has been encoded.
SumAside::Pieces SumAside::own_term() {
  const int position = members_.rank();
  if (codec_ == nullptr) return parts_[position];
  const auto encoded = codec_->encode(parts_[position], position, false);
  return codec_->decode(encoded, parts_[position], position, false);
}

/// Adds up all terms in the memory of one that came from another member, so that the tensors stay
/// as they are.
SumAside::Pieces SumAside::sum_of_all() {
  const int own = members_.rank();
  const auto term_of = [&](int position) {
    return position == own ? own_term() : take(CollectivePhase::kExchange, position);
  };
  if (sums_wide(parts_[own][0].scalar_type())) {
    Pieces sum;
    for (int position = 0; position < members_.size(); ++position) {
      SumParts::add_wide(sum, term_of(position));
    }
    const PlainData plain;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = sum[i].div_(divisor_).to(parts_[own][i].scalar_type());
    }
    return sum;
  }
  Pieces sum = term_of(0);
  bool ours = own != 0;  // the memory of `sum`
  for (int position = 1; position < members_.size(); ++position) {
    auto term = term_of(position);
    const PlainData plain;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      auto& place = ours ? sum[i] : term[i];
      at::add_out(place, sum[i], term[i]);
    }
    if (!std::exchange(ours, true)) sum = std::move(term);
  }
  const PlainData plain;
  if (!ours) {  // of one member
    for (auto& piece : sum) piece = piece.clone();
  }
  if (divisor_ != 1) {  // integers cannot be divided in place
    for (auto& piece : sum) piece.div_(divisor_);
  }
  return sum;
}

void SumAside::write() {
  SMP_ASSERT(added_, "a sum is written that has not been added up");
  std::vector<Pieces> sums;
  for (int position = 0; position < members_.size(); ++position) {
    const bool comes = parts_.for_all() && position != members_.rank() && !parts_[position].empty();
    sums.push_back(comes ? take(CollectivePhase::kResult, position) : Pieces());
  }
  sums[static_cast<std::size_t>(members_.rank())] = std::move(sum_);
  collective_.await_departure();  // others read the tensors until then
  const PlainData plain;
  for (int position = 0; position < members_.size(); ++position) {
    auto& part = parts_[position];
    const auto& sum = sums[static_cast<std::size_t>(position)];
    for (std::size_t i = 0; i < sum.size(); ++i) part[i].copy_(sum[i]);
  }
}

}  // namespace smp::d2d
