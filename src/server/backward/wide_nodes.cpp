// server/backward/wide_nodes.cpp: see the header.
#include "server/backward/wide_nodes.h"

#include <ATen/ATen.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <array>
#include <cstdint>
#include <type_traits>
#include <typeinfo>
#include <vector>

namespace smp::server {
namespace {

using namespace torch::autograd::generated;
using torch::autograd::Node;
using torch::autograd::variable_list;

bool is_narrow(const at::Tensor& tensor) {
  return tensor.defined() && at::isReducedFloatingType(tensor.scalar_type());
}

template <class Kind>
Kind* as(Node& node) {
  return typeid(node) == typeid(Kind) ? static_cast<Kind*>(&node) : nullptr;
}

/// As nodes are kept from one LibTorch to the next.
template <class AnyNode>
auto pointer_to(AnyNode& node) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, AnyNode>) {
    return c10::intrusive_ptr<AnyNode>::reclaim_copy(&node);
  } else {
    return node.shared_from_this();
  }
}

/// Weights of single rows would have to have the gradient's type.
bool takes_wide_gradients(Node& node) {
  if (auto* const bag = as<EmbeddingBagBackward0>(node)) {
    return !bag->sparse && !bag->per_sample_weights_.unpack().defined();
  }
  return as<EmbeddingBackward0>(node) != nullptr || as<IndexSelectBackward0>(node) != nullptr;
}

std::vector<std::int64_t> plain(const std::vector<c10::SymInt>& sizes) {
  std::vector<std::int64_t> all;
  for (const auto& size : sizes) all.push_back(size.guard_int(__FILE__, __LINE__));
  return all;
}

/// On CPUs in float64: LibTorch's float32 kernel adds in the order in which threads come (2.13).
std::optional<variable_list> of_index(IndexBackward0& node, const at::Tensor& gradient) {
  const bool narrow =
      at::isReducedFloatingType(c10::typeMetaToScalarType(node.self_options.dtype()));
  if (!narrow || node.indices_released_) return std::nullopt;
  c10::List<std::optional<at::Tensor>> indices;
  for (const auto& index : node.indices_) indices.push_back(index.unpack());
  const auto wide = gradient.is_cpu() ? at::kDouble : at::kFloat;
  auto sums = at::zeros(plain(node.self_sym_sizes), gradient.options().dtype(wide));
  at::_index_put_impl_(sums, indices, gradient.to(wide), /*accumulate=*/true, /*unsafe=*/true);
  variable_list result(node.num_outputs());
  result[0] = std::move(sums);
  return result;
}

std::optional<variable_list> of_layer_norm(NativeLayerNormBackward0& node,
                                           const at::Tensor& gradient) {
  if (!gradient.is_cpu() || !is_narrow(gradient)) return std::nullopt;
  const auto weight = node.weight_.unpack();
  if (!weight.defined() || weight.scalar_type() != at::kFloat) return std::nullopt;
  const auto self = pointer_to<Node>(node);
  const auto input = node.input_.unpack();
  const std::array<bool, 3> wanted{node.task_should_compute_output(0),
                                   node.task_should_compute_output(1),
                                   node.task_should_compute_output(2)};
  auto [of_input, of_weight, of_bias] = at::native_layer_norm_backward(
      gradient.to(at::kFloat), input.to(at::kFloat), plain(node.normalized_shape),
      node.result1_.unpack(self), node.result2_.unpack(self), weight, node.bias_.unpack(), wanted);
  if (of_input.defined()) of_input = of_input.to(input.scalar_type());
  return variable_list{of_input, of_weight, of_bias};
}

}  // namespace

void widen_sums(Node& node, variable_list& gradients) {
  if (gradients.empty() || !is_narrow(gradients[0])) return;
  if (takes_wide_gradients(node)) gradients[0] = gradients[0].to(at::kFloat);
}

std::optional<variable_list> computed_wide(Node& node, const variable_list& gradients) {
  if (gradients.empty() || !is_narrow(gradients[0]) || at::GradMode::is_enabled()) {
    return std::nullopt;
  }
  if (auto* const index = as<IndexBackward0>(node)) return of_index(*index, gradients[0]);
  if (auto* const norm = as<NativeLayerNormBackward0>(node)) {
    return of_layer_norm(*norm, gradients[0]);
  }
  return std::nullopt;
}

}  // namespace smp::server
