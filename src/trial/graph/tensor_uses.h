// trial/graph/tensor_uses.h: the tensors that calls get and return, and what else keeps them.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trial/graph/live_bytes.h"
#include "trial/graph/traced_graph.h"

namespace smp::partitioning {

/// Collects uses by storage, and gives each trace those of tensors that have several
/// (simulate::Trace::uses). A tensor that several models have is one of each.
class TensorUses {
 public:
  /// Both must outlive this.
  TensorUses(const TracedGraph& graph, const KnownStorages& known) : graph_(graph), known_(known) {}

  /// Notes the nodes that keep a storage for backward, one a call.
  void add_kept(const void* storage, const std::vector<std::size_t>& nodes) {
    kept_.emplace(storage, &nodes);
  }
  /// Notes what calls got, and what they returned.
  void add(const std::vector<LiveTensor>& got, const std::vector<LiveTensor>& returned);
  /// Fills in the uses of the traces.
  void write() const;

 private:
  /// A tensor of a model.
  struct Tensor {
    int model;
    std::vector<simulate::TensorUse> uses;
  };

  void add(const LiveTensor& tensor, simulate::TensorUseKind kind);
  Tensor& tensor_of(int model, const void* storage, std::int64_t bytes);

  const TracedGraph& graph_;
  const KnownStorages& known_;
  std::unordered_map<const void*, const std::vector<std::size_t>*> kept_;
  std::vector<Tensor> tensors_;                                      // as they were first seen
  std::vector<std::unordered_map<const void*, std::size_t>> index_;  // by model and storage
};

}  // namespace smp::partitioning
