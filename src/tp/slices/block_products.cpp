// tp/slices/block_products.cpp: see the header.
#include "tp/slices/block_products.h"

#include <ATen/ATen.h>

#include <utility>

#include "nn/weight_casts.h"
#include "smp/tp/batch_primitives.h"
#include "smp/tp/primitives.h"
#include "tp/group/tensor_parallel.h"
#include "tp/slices/joined_product.h"
#include "tp/slices/sequence_parts.h"

namespace smp::tp {
namespace {

/// Returns the rows of an [O, ..] parameter that this rank computes with.
at::Tensor own_rows(const at::Tensor& parameter, const ChannelShare& share) {
  if (share.cut()) return parameter;
  const auto rank = static_cast<std::size_t>(TensorParallel::current().rank());
  return used_in_part_for_tp(parameter).narrow(0, share.first[rank], share.count);
}

/// Rearranges partial sums of all channels, [T·B, S, C], by the rank that gets them: [T, T·B, S,
/// share.count].
at::Tensor by_rank(const at::Tensor& sums, const ChannelShare& share) {
  const auto ranks = static_cast<std::int64_t>(share.first.size());
  const auto padding = ranks * share.count - sums.size(-1);
  at::Tensor all = sums;
  if (!share.cut()) {
    all = sums.index_select(-1, at::tensor(share.places(), at::kLong).to(sums.device()));
  } else if (padding > 0) {
    all = at::constant_pad_nd(sums, {0, padding});
  }
  return all.unflatten(-1, {ranks, share.count}).movedim(-2, 0);
}

/// Returns the biases of this rank's channels, one after another: with all projections or with
/// none.
at::Tensor own_biases(const std::vector<Projection>& projections) {
  std::vector<at::Tensor> biases;
  for (const auto& [layer, share] : projections) {
    if (layer->bias.defined()) biases.push_back(own_rows(layer->bias, share));
  }
  return biases.empty() ? at::Tensor() : biases.size() == 1 ? biases[0] : at::cat(biases);
}

/// Adds up partial sums of all channels, of which each rank gets its own.
at::Tensor scattered(const at::Tensor& slices, const std::vector<Projection>& projections) {
  std::vector<at::Tensor> weights, sums;
  std::vector<std::int64_t> sizes;
  for (const auto& projection : projections) {
    weights.push_back(projection.layer->weight);
    sizes.push_back(weights.back().size(0));
  }
  const auto all = joined_product(slices, weights, {}).split_with_sizes(sizes, -1);
  for (std::size_t i = 0; i < all.size(); ++i)
    sums.push_back(by_rank(all[i], projections[i].share));
  const auto own = reduce_scatter_for_tp(at::cat(std::exchange(sums, {}), -1), 0).squeeze(0);
  const auto biases = own_biases(projections);
  return biases.defined() ? own + biases : own;
}

std::vector<at::Tensor> own_weights(const std::vector<Projection>& projections) {
  std::vector<at::Tensor> weights;
  for (const auto& [layer, share] : projections) weights.push_back(own_rows(layer->weight, share));
  return weights;
}

std::vector<at::Tensor> split(const at::Tensor& channels,
                              const std::vector<Projection>& projections) {
  std::vector<std::int64_t> counts;
  for (const auto& projection : projections) counts.push_back(projection.share.count);
  return channels.split_with_sizes(counts, -1);
}

}  // namespace

LinearCut cut_of_first(Layout layout, const ChannelShare& share) {
  using Weight = LinearCut::Weight;
  LinearCut cut{.bias = share.cut(), .out_unit = share.unit};
  if (layout == Layout::kMemory) {
    cut.weight = Weight::kInputs;
  } else if (share.cut()) {
    cut.weight = Weight::kOutputs;
  }
  return cut;
}

LinearCut cut_of_second(Layout layout, const ChannelShare& share) {
  return {.weight = LinearCut::Weight::kInputs,
          .bias = layout == Layout::kMemory,
          .in_unit = share.unit};
}

SplitLinear first_product(Layout layout, std::int64_t in_features, std::int64_t out_features,
                          const ChannelShare& share, NormalDeviation deviation, bool has_bias) {
  return SplitLinear(in_features, out_features, cut_of_first(layout, share), deviation, has_bias);
}

SplitLinear second_product(Layout layout, std::int64_t in_features, std::int64_t out_features,
                           const ChannelShare& share, NormalDeviation deviation, bool has_bias) {
  return SplitLinear(in_features, out_features, cut_of_second(layout, share), deviation, has_bias);
}

at::Tensor read_by_products(Layout layout, const at::Tensor& x) {
  return layout == Layout::kMemory ? x : whole_batch_for_tp(x);
}

std::vector<at::Tensor> channels_of(Layout layout, const at::Tensor& read,
                                    const std::vector<Projection>& projections) {
  return split(layout == Layout::kMemory
                   ? scattered(read, projections)
                   : joined_product(read, own_weights(projections), own_biases(projections)),
               projections);
}

std::vector<at::Tensor> channels_between(Layout layout, const at::Tensor& x,
                                         const std::vector<Projection>& projections,
                                         std::int64_t length) {
  if (layout != Layout::kSequence) {
    return channels_of(layout, read_by_products(layout, x), projections);
  }
  return split(sequence_product(x, length, own_weights(projections), own_biases(projections)),
               projections);
}

at::Tensor joined_by(Layout layout, const SplitLinear& layer, const at::Tensor& channels) {
  const auto products = at::linear(channels, nn::cast_of(layer->weight));
  const auto sums = layout == Layout::kMemory     ? reduce_scatter_for_tp(products, -1)
                    : layout == Layout::kSequence ? summed_sequence(products)
                                                  : batch_of_sums_for_tp(products);
  if (!layer->bias.defined()) return sums;
  return sums + (layout == Layout::kSequence ? used_in_part_for_tp(layer->bias) : layer->bias);
}

}  // namespace smp::tp
