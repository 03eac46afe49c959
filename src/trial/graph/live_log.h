// trial/graph/live_log.h: notes, while a body is traced, which tensors callers have and which call
// made which part of the graph; then tells the traces what is live (paper App. C.1).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "module/node_pointer.h"
#include "simulate/trace.h"
#include "trial/graph/call_recorder.h"
#include "trial/graph/live_bytes.h"

namespace smp::partitioning {

/// Of one run. Keeps the graph alive, but no tensor that only a caller has.
class LiveLog {
 public:
  using Call = CallRecorder::Call;

  LiveLog();

  void begin(const Call& call);
  /// @param outer  what runs on
  void end(const Call& outer);

  /// Of the call that began last.
  void note_arguments(const std::vector<at::Tensor>& arguments);
  /// Of a call that ended, for the one that runs on.
  void note_results(const std::vector<at::Tensor>& results);

  /// What is below these tensors counts.
  void keep_graph(const std::vector<at::Tensor>& roots);

  /// Fills the bytes of the calls. @param weights  storages that are there anyway
  void account(const std::unordered_set<const void*>& weights,
               std::vector<simulate::Trace>& traces) const;

 private:
  /// Nodes of the graph are numbered as they are made; `call` runs from there on.
  struct Change {
    std::uint64_t sequence_number;
    Call call;
    bool begins;
  };
  void note_change(const Call& call, bool begins);
  ModelInterval interval_at(std::uint64_t sequence_number) const;

  std::vector<Change> changes_;
  std::vector<LiveTensor> live_;
  std::vector<std::vector<LiveTensor>> results_;  // by running call, the body first: of its callees
  std::vector<NodePointer<torch::autograd::Node>> roots_;
};

}  // namespace smp::partitioning
