// trial/graph/live_bytes.h: what is live while a traced microbatch runs: tensors kept for
// backward, tensors of callers that wait, and gradients on their way (paper App. C.1).
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <functional>
#include <unordered_set>
#include <vector>

#include "simulate/trace.h"
#include "trial/graph/call_recorder.h"
#include "trial/graph/saved_tensors.h"
#include "trial/graph/traced_graph.h"

namespace smp::partitioning {

/// A tensor that the caller of `call` holds while `call` runs.
struct LiveTensor {
  CallRecorder::Call call;
  bool argument;  ///< an argument of `call`; else an earlier result that is still alive
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  ///< weak, so that it takes no memory
  std::int64_t bytes;
};

/// Storages by what they are.
struct KnownStorages {
  const std::unordered_set<const void*>& weights;  ///< not counted: they are there anyway
  /// Not counted where the body runs, since they are there anyway; elsewhere as copies.
  const std::unordered_set<const void*>& batch;
  const std::unordered_set<const void*>& products;  ///< what products have returned
};

/// Fills in the bytes of the calls (activations and gradients, of their own and of their callers),
/// the shared tensors and the uses of tensors. Where the user wrote a backward, its time is set to
/// unknown.
/// @param nodes        the graph of the whole body
/// @param interval_of  the compute interval that made the node with this sequence number
/// @param live         the tensors that callers held during their calls
/// @param returned     the results of calls
void account_live_bytes(const std::vector<KeepingNode>& nodes, const std::vector<LiveTensor>& live,
                        const std::vector<LiveTensor>& returned,
                        const std::function<ModelInterval(std::uint64_t)>& interval_of,
                        const KnownStorages& known, std::vector<simulate::Trace>& traces);

}  // namespace smp::partitioning
