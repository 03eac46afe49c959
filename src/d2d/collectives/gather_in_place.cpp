// d2d/collectives/gather_in_place.cpp: see the header.
#include "d2d/collectives/gather_in_place.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/check.h"

namespace smp::d2d {
namespace {

CollectiveCall call_of(const SumParts& parts) {
  auto call = parts.call();
  call.kind = CollectiveKind::kTensorAllGather;
  return call;
}

}  // namespace

GatherInPlace::GatherInPlace(const Communicator& members, SumParts parts, const char* what)
    : members_(members), parts_(std::move(parts)), collective_(members_, call_of(parts_), what) {
  SMP_ASSERT(!parts_.for_all() && parts_.size() == members_.size(), what, " without owners");
  const auto& own = parts_[members_.rank()];
  if (own.empty()) return;
  for (int position = 0; position < members_.size(); ++position) {
    if (position == members_.rank()) continue;
    collective_.send_parts(CollectivePhase::kExchange, members_.members()[position], own);
  }
}

void GatherInPlace::finish() {
  for (int position = 0; position < members_.size(); ++position) {
    auto& part = parts_[position];
    if (position == members_.rank() || part.empty()) continue;
    const auto peer = members_.members()[position];
    const auto values = collective_.take(CollectivePhase::kExchange, peer).tensors;
    SMP_ASSERT(parts_.fit(values, position), "rank ", peer, " gives other tensors than it owns");
    const PlainData plain;
    for (std::size_t i = 0; i < part.size(); ++i) part[i].copy_(values[i]);
  }
  collective_.await_departure();
}

}  // namespace smp::d2d
