// tp/slices/block_products.cpp: see the header.
#include "tp/slices/block_products.h"

#include <ATen/ATen.h>

#include <utility>

#include "smp/tp/batch_primitives.h"
#include "smp/tp/primitives.h"
#include "tp/group/tensor_parallel.h"
#include "tp/group/used_in_part.h"

namespace smp::tp {
namespace {

/// Returns the rows of an [O, ..] parameter that this rank computes with.
at::Tensor own_rows(const at::Tensor& parameter, const ChannelShare& share) {
  if (share.cut()) return parameter;
  const auto rank = static_cast<std::size_t>(TensorParallel::current().rank());
  return used_in_part(parameter).narrow(0, share.first[rank], share.count);
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

std::vector<at::Tensor> scattered_channels(const at::Tensor& slices,
                                           const std::vector<Projection>& projections) {
  std::vector<at::Tensor> sums;
  std::vector<std::int64_t> counts;
  for (const auto& [layer, share] : projections) {
    sums.push_back(by_rank(at::linear(slices, layer->weight), share));
    counts.push_back(share.count);
  }
  const auto own = reduce_scatter_for_tp(at::cat(std::exchange(sums, {}), -1), 0).squeeze(0);
  auto channels = own.split_with_sizes(counts, -1);
  for (std::size_t i = 0; i < channels.size(); ++i) {
    channels[i] = channels[i] + own_rows(projections[i].layer->bias, projections[i].share);
  }
  return channels;
}

}  // namespace

SplitLinear first_product(Layout layout, std::int64_t in_features, std::int64_t out_features,
                          const ChannelShare& share, NormalDeviation deviation) {
  using Weight = LinearCut::Weight;
  LinearCut cut{.bias = share.cut(), .out_unit = share.unit};
  if (layout == Layout::kMemory) {
    cut.weight = Weight::kInputs;
  } else if (share.cut()) {
    cut.weight = Weight::kOutputs;
  }
  return SplitLinear(in_features, out_features, cut, deviation);
}

SplitLinear second_product(Layout layout, std::int64_t in_features, std::int64_t out_features,
                           const ChannelShare& share, NormalDeviation deviation) {
  const LinearCut cut{.weight = LinearCut::Weight::kInputs,
                      .bias = layout == Layout::kMemory,
                      .in_unit = share.unit};
  return SplitLinear(in_features, out_features, cut, deviation);
}

at::Tensor read_by_products(Layout layout, const at::Tensor& x) {
  return layout == Layout::kMemory ? x : whole_batch_for_tp(x);
}

std::vector<at::Tensor> channels_of(Layout layout, const at::Tensor& read,
                                    const std::vector<Projection>& projections) {
  if (layout == Layout::kMemory) return scattered_channels(read, projections);
  std::vector<at::Tensor> channels;
  for (const auto& [layer, share] : projections) {
    channels.push_back(
        at::linear(read, own_rows(layer->weight, share), own_rows(layer->bias, share)));
  }
  return channels;
}

at::Tensor joined_by(Layout layout, const SplitLinear& layer, const at::Tensor& channels) {
  const auto sums = at::linear(channels, layer->weight);
  return (layout == Layout::kMemory ? reduce_scatter_for_tp(sums, -1)
                                    : batch_of_sums_for_tp(sums)) +
         layer->bias;
}

}  // namespace smp::tp
