// server/graph/node_kind.cpp: from types to kinds, and the types seen so far.
#include "server/graph/node_kind.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <string_view>
#include <typeinfo>

#include "server/graph/special_nodes.h"

namespace smp::server {
namespace {

/// True for node types that LibTorch has generated, told by their name: nodes of views, such as
/// that of every Linear's weight, do not call themselves traceable as others do.
bool is_generated(const std::type_info& type) {
  return std::string_view(type.name()).starts_with("N5torch8autograd9generated");
}

NodeKind find_kind(const Node& node, const std::type_info& type) {
  if (type == typeid(torch::autograd::AccumulateGrad)) return NodeKind::kLeaf;
  if (is_generated(type)) return NodeKind::kGenerated;
  if (type == typeid(BoundaryInput)) return NodeKind::kBoundary;
  if (dynamic_cast<const AsyncNode*>(&node) != nullptr) return NodeKind::kAsync;
  if (dynamic_cast<const module::SuspendingNode*>(&node) != nullptr) return NodeKind::kSuspending;
  return NodeKind::kOther;
}

}  // namespace

NodeKind kind_of(const Node& node) {
  thread_local ska::flat_hash_map<const std::type_info*, NodeKind> known;
  const auto& type = typeid(node);
  if (const auto found = known.find(&type); found != known.end()) return found->second;
  const auto kind = find_kind(node, type);
  // A library of the user's may be unloaded, and another one put its types there.
  if (kind != NodeKind::kOther) known.emplace(&type, kind);
  return kind;
}

}  // namespace smp::server
