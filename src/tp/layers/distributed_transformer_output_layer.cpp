// tp/layers/distributed_transformer_output_layer.cpp: the block is the same in both layouts; what
// differs is in block_products.h and block_norms.h.
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "smp/tp/distributed_transformer.h"
#include "tp/group/tensor_parallel.h"
#include "tp/layers/block_norms.h"
#include "tp/layers/transformer_block.h"
#include "tp/slices/block_products.h"
#include "tp/slices/channel_share.h"
#include "tp/slices/sliced_state.h"

namespace smp::nn {
namespace {

constexpr const char* kOutput = "DistributedTransformerOutputLayer";

/// What becomes of the inner channels of a block of products.
struct Activation {
  const char* name;
  at::Tensor (*apply)(const at::Tensor& x);
  bool gated;  ///< of a gate, by which other channels are multiplied
};

at::Tensor relu(const at::Tensor& x) { return at::relu(x); }
at::Tensor silu(const at::Tensor& x) { return at::silu(x); }
at::Tensor gelu(const at::Tensor& x) { return at::gelu(x); }
at::Tensor gelu_tanh(const at::Tensor& x) { return at::gelu(x, "tanh"); }

constexpr Activation kActivations[] = {{"gelu", &gelu, false}, {"gelu_tanh", &gelu_tanh, false},
                                       {"relu", &relu, false}, {"swiglu", &silu, true},
                                       {"geglu", &gelu, true}, {"geglu_tanh", &gelu_tanh, true},
                                       {"reglu", &relu, true}};

/// @throws UsageError  there is none of that name.
Activation activation_named(const std::string& name) {
  std::string known;
  for (const auto& activation : kActivations) {
    if (name == activation.name) return activation;
    known += known.empty() ? activation.name : std::string(", ") + activation.name;
  }
  throw UsageError(base::concat(kOutput, ": activation \"", name, "\"; expected one of ", known));
}

}  // namespace

struct DistributedTransformerOutputLayerImpl::Parts {
  explicit Parts(const TransformerOutputLayerOptions& options)
      : layout(tp::layout_for(options, kOutput)),
        norms(tp::BlockNorms::of(options, layout, kOutput)),
        inner(tp::ChannelShare::even(options.intermediate_size, 1,
                                     tp::TensorParallel::current().size())),
        activation(activation_named(options.activation)) {}

  const tp::Layout layout;
  tp::BlockNorms norms;
  const tp::ChannelShare inner;
  const Activation activation;
  tp::SplitLinear gate{nullptr}, first{nullptr}, second{nullptr};
};

DistributedTransformerOutputLayerImpl::DistributedTransformerOutputLayerImpl(
    const TransformerOutputLayerOptions& with)
    : options(with), parts_(std::make_shared<Parts>(with)) {
  tp::require_divisible(options.intermediate_size, "intermediate_size", kOutput);
  auto& own = *parts_;
  own.norms.before.register_at(*this, "pre_norm");
  const auto hidden = options.hidden_size, inner = options.intermediate_size;
  const auto deviation = tp::deviation_of(options);
  const auto into = [&](const char* name) {
    return register_module(
        name, tp::first_product(own.layout, hidden, inner, own.inner, deviation, options.bias));
  };
  if (own.activation.gated) own.gate = into("gate");
  own.first = into("first");
  own.second = register_module(
      "second", tp::second_product(own.layout, inner, hidden, own.inner, deviation, options.bias));
  own.norms.after.register_at(*this, "post_norm");
}

DistributedTransformerOutputLayerImpl::~DistributedTransformerOutputLayerImpl() = default;

/// What a rank has between blocks.
struct DistributedTransformerOutputLayerImpl::Call {
  tp::Layout between;
  const at::Tensor& hidden;
  std::int64_t length = 0;  // of the sequence, with kSequence
};

at::Tensor DistributedTransformerOutputLayerImpl::forward(const at::Tensor& hidden) {
  tp::require_hidden(hidden, options.hidden_size, "hidden", kOutput);
  const auto layout = parts_->layout;
  if (layout != tp::Layout::kMemory) return block({tp::Layout::kSpeed, hidden});
  return tp::own_samples(block({layout, tp::sliced({.hidden = hidden}).hidden}));
}

at::Tensor DistributedTransformerOutputLayerImpl::forward_slices(const at::Tensor& hidden) {
  tp::require_slices(parts_->layout, kOutput);
  tp::require_hidden(hidden, tp::slice_width(options.hidden_size), "hidden", kOutput);
  return block({parts_->layout, hidden});
}

at::Tensor DistributedTransformerOutputLayerImpl::forward_part(const at::Tensor& part,
                                                               std::int64_t length) {
  tp::require_parts(parts_->layout, kOutput);
  tp::require_hidden(part, options.hidden_size, "part", kOutput);
  return block({parts_->layout, part, length});
}

at::Tensor DistributedTransformerOutputLayerImpl::block(const Call& call) {
  auto& own = *parts_;
  const auto x = tp::read_with(own.first, own.norms.before(call.hidden, call.between),
                               options.fp32_residual_addition);
  std::vector<tp::Projection> projections;
  if (own.activation.gated) projections.push_back({own.gate, own.inner});
  projections.push_back({own.first, own.inner});
  const auto inner = tp::channels_between(call.between, x, projections, call.length);
  auto active = own.activation.apply(inner[0]);
  if (own.activation.gated) active = active * inner[1];
  const auto output = tp::joined_by(call.between, own.second, active);
  const auto dropped =
      tp::dropout_between(call.between, output, options.hidden_dropout_prob, is_training());
  return own.norms.after(tp::residual_sum(call.hidden, dropped, options.fp32_residual_addition),
                         call.between);
}

}  // namespace smp::nn
