// server/graph/node_kind.h: what a backward pass has to do with a node, told from its type.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>

namespace smp::server {

enum class NodeKind : std::uint8_t {
  kOther,       ///< may be a function of the user's
  kLeaf,        ///< AccumulateGrad
  kGenerated,   ///< by LibTorch: it waits for nobody and runs its own code
  kBoundary,    ///< BoundaryInput
  kAsync,       ///< AsyncNode
  kSuspending,  ///< module::SuspendingNode
};

/// Returns the kind of `node`. A pass asks once a node, so casts and comparisons of names are made
/// once a type: those of LibTorch and of this library, which stay loaded, are remembered. Threads:
/// any.
NodeKind kind_of(const torch::autograd::Node& node);

inline bool waits_for_others(NodeKind kind) noexcept {
  return kind == NodeKind::kAsync || kind == NodeKind::kSuspending;
}

}  // namespace smp::server
