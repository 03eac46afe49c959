// tp/layers/distributed_gated_mlp.cpp: see the header.
#include "smp/tp/distributed_gated_mlp.h"

#include <ATen/ATen.h>

#include "nn/gate_activation.h"
#include "smp/tp/batch_primitives.h"
#include "tp/group/tensor_parallel.h"
#include "tp/slices/block_layout.h"
#include "tp/slices/block_products.h"

namespace smp::nn {
namespace {

constexpr const char* kGatedMlp = "DistributedGatedMlp";

}  // namespace

struct DistributedGatedMlpImpl::Parts {
  /// @param between  the layout of x; @param length  of its sequence, with kSequence
  at::Tensor block(tp::Layout between, const at::Tensor& x, std::int64_t length = 0) const {
    const auto channels = tp::channels_between(between, x, {{gate, inner}, {up, inner}}, length);
    return tp::joined_by(between, down, activated(channels[0], activation) * channels[1]);
  }

  tp::Layout layout;
  tp::ChannelShare inner;
  GateActivation activation;
  tp::SplitLinear gate{nullptr}, up{nullptr}, down{nullptr};
};

DistributedGatedMlpImpl::DistributedGatedMlpImpl(const GatedMlpImpl& whole,
                                                 const std::string& optimize, tp::Keep keep)
    : options(whole.options),
      parts_(std::make_shared<Parts>(Parts{
          tp::layout_of_block(optimize, options.width(), kGatedMlp),
          tp::ChannelShare::even(options.inner_width(), 1, tp::TensorParallel::current().size()),
          options.activation()})) {
  auto& own = *parts_;
  const auto into = tp::cut_of_first(own.layout, own.inner);
  own.gate = register_module("gate_proj", tp::SplitLinear(*whole.gate_proj, into, keep));
  own.up = register_module("up_proj", tp::SplitLinear(*whole.up_proj, into, keep));
  own.down = register_module(
      "down_proj",
      tp::SplitLinear(*whole.down_proj, tp::cut_of_second(own.layout, own.inner), keep));
}

DistributedGatedMlpImpl::DistributedGatedMlpImpl(const GatedMlpOptions& with,
                                                 const std::string& optimize)
    : DistributedGatedMlpImpl(GatedMlpImpl(with), optimize, tp::Keep::kCopies) {}

DistributedGatedMlpImpl::DistributedGatedMlpImpl(GatedMlpImpl& original)
    : DistributedGatedMlpImpl(original, {}, tp::Keep::kAdopted) {}

DistributedGatedMlpImpl::~DistributedGatedMlpImpl() = default;

std::string DistributedGatedMlpImpl::obstacle(const GatedMlpImpl& original, int ranks) {
  return tp::obstacle_of_block(original.options.width(), ranks);
}

void DistributedGatedMlpImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::DistributedGatedMlp(" << options.width() << ", " << options.inner_width()
         << ")";
}

at::Tensor DistributedGatedMlpImpl::forward(const at::Tensor& input) {
  auto& own = *parts_;
  tp::require_rows(own.layout, input, options.width(), /*sliced=*/false, 2, kGatedMlp);
  if (own.layout != tp::Layout::kMemory) return own.block(tp::Layout::kSpeed, input);
  return batch_of_slices_for_tp(own.block(own.layout, slices_of_batch_for_tp(input, -1)), -1);
}

at::Tensor DistributedGatedMlpImpl::forward_slices(const at::Tensor& slices) {
  tp::require_rows(parts_->layout, slices, options.width(), /*sliced=*/true, 2, kGatedMlp);
  return parts_->block(parts_->layout, slices);
}

at::Tensor DistributedGatedMlpImpl::of_parts(const at::Tensor& part, std::int64_t length) {
  return parts_->block(tp::Layout::kSequence, part, length);
}

}  // namespace smp::nn
