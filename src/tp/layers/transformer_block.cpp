// tp/layers/transformer_block.cpp: see the header.
#include "tp/layers/transformer_block.h"

#include <ATen/ATen.h>

#include "base/check.h"
#include "nn/accumulate_type.h"
#include "tp/group/own_dropout.h"
#include "tp/group/tensor_parallel.h"

namespace smp::tp {

void require_divisible(std::int64_t size, const char* what, const char* layer) {
  const auto ranks = TensorParallel::current().size();
  SMP_REQUIRE(size > 0 && size % ranks == 0, layer, ": ", what, ' ', size,
              " cannot be divided by the ", ranks,
              " tensor-parallel ranks; choose a number that can, or another "
              "tensor_parallel_degree");
}

void require_hidden(const at::Tensor& hidden, std::int64_t size, const char* what,
                    const char* layer) {
  SMP_REQUIRE(hidden.defined() && hidden.dim() == 3 && hidden.size(2) == size, layer, ": ", what,
              " is ", hidden.defined() ? base::concat(hidden.sizes()) : "undefined",
              ", expected [batch, sequence, ", size, "]; check hidden_size");
}

void require_slices(Layout layout, const char* layer) {
  SMP_REQUIRE(layout == Layout::kMemory, layer,
              ": forward_slices with layout \"speed\", which all layers have on a single "
              "tensor-parallel rank; call forward, or set optimize to \"memory\"");
}

void require_parts(Layout layout, const char* layer) {
  SMP_REQUIRE(layout == Layout::kSequence, layer,
              ": forward_part without layout \"sequence\", which layers have where several "
              "tensor-parallel ranks have one batch; call forward, or set optimize to "
              "\"sequence\" and prescaled_batch");
}

std::int64_t slice_width(std::int64_t hidden_size) {
  return hidden_size / TensorParallel::current().size();
}

at::Tensor dropout_between(Layout between, const at::Tensor& x, double probability, bool training) {
  return between == Layout::kSpeed ? at::dropout(x, probability, training)
                                   : own_dropout(x, probability, training);
}

AttentionLayerOptions attention_of_layer(const AttentionLayerOptions& of_stack,
                                         std::int64_t index) {
  auto options = of_stack;
  if (index > 0) options.relative_positions.reset();
  return options;
}

at::Tensor read_with(const SplitLinear& layer, const at::Tensor& x, bool fp32_between) {
  return fp32_between ? x.to(layer->weight.scalar_type()) : x;
}

at::Tensor residual_sum(const at::Tensor& hidden, const at::Tensor& added, bool in_float32) {
  if (!in_float32) return hidden + added;
  return nn::in_accumulate_type(hidden) + nn::in_accumulate_type(added);
}

}  // namespace smp::tp
