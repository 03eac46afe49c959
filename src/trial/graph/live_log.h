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

/// The notes of one run of a body. Keeps the autograd graph alive, but no tensor that only a
/// caller holds.
class LiveLog {
 public:
  using Call = CallRecorder::Call;

  LiveLog();

  void begin(const Call& call);
  /// @param outer  the call, or the body, that runs on
  void end(const Call& outer);

  /// Notes the arguments of the call that began last.
  void note_arguments(const std::vector<at::Tensor>& arguments);
  /// Notes the results of a call that ended as tensors that the call which runs on now holds.
  void note_results(const std::vector<at::Tensor>& results);

  /// Notes tensors of the batch, and keeps them.
  void note_batch(const std::vector<at::Tensor>& tensors) { batch_ = tensors; }

  /// Notes what a product has returned.
  void note_product(const at::Tensor& tensor);

  /// Keeps the graph below these tensors, so that account() counts what its nodes hold.
  void keep_graph(const std::vector<at::Tensor>& roots);

  /// Fills in the bytes of the calls of `traces`.
  /// @param weights  storages of weights, which are not counted: they are there anyway
  void account(const std::unordered_set<const void*>& weights,
               std::vector<simulate::Trace>& traces) const;

 private:
  /// A change of the running call: nodes of the graph, which are numbered as they are made, belong
  /// to `call` from this sequence number on.
  struct Change {
    std::uint64_t sequence_number;
    Call call;
    bool begins;
  };
  void note_change(const Call& call, bool begins);
  ModelInterval interval_at(std::uint64_t sequence_number) const;

  std::vector<Change> changes_;
  std::vector<LiveTensor> live_;
  std::vector<LiveTensor> returned_;  // results, of the calls that returned them
  std::vector<Call> running_;
  Call ended_ = {};                               // last
  std::vector<std::vector<LiveTensor>> results_;  // by running call, the body first: of its callees
  std::vector<NodePointer<torch::autograd::Node>> roots_;
  std::vector<at::Tensor> batch_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> products_;
};

}  // namespace smp::partitioning
