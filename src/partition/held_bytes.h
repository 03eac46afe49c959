// partition/held_bytes.h: what a traced microbatch holds: tensors kept for backward, tensors of
// callers that wait, and gradients on their way (App. C.1).
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <functional>
#include <unordered_set>
#include <vector>

#include "partition/call_recorder.h"
#include "partition/saved_tensors.h"
#include "partition/trace.h"

namespace smp::partition {

/// A stretch of the trace of one of several models. The body after its last call counts for the
/// first.
struct ModelStretch {
  int model = 0;
  StretchId stretch;
};

/// A tensor that the caller of `call` has while this runs.
struct HeldTensor {
  CallRecorder::Call call;
  bool argument;  ///< of the call; else it is only known to live, maybe as another call keeps it
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< weak, so that it takes no memory
  std::int64_t bytes;
};

/// Fills what the calls hold (lent, activation, gradient and waiting bytes) and the shared tensors.
/// @param nodes       the graph of the whole body
/// @param stretch_of  the stretch that made the node with this sequence number
/// @param weights     storages that are there anyway
void account_held_bytes(const std::vector<KeepingNode>& nodes, const std::vector<HeldTensor>& held,
                        const std::function<ModelStretch(std::uint64_t)>& stretch_of,
                        const std::unordered_set<const void*>& weights, std::vector<Trace>& traces);

}  // namespace smp::partition
