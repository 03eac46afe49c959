// tp/slices/block_products.h: the two products of a transformer's block over the ranks of a
// TP_GROUP, in both layouts (paper App. F, Figures 11 to 14).
//
// B rows of one rank's batch, S sequence, H hidden size, C channels, T tensor-parallel ranks.
//
// Between blocks a rank has x: with kSpeed [B, S, H] of its own samples, with kMemory [T·B, S, H/T]
// of all samples. Within a block it has its channels of all samples, [T·B, S, C/T]:
//
//     kSpeed   x ─ all-gather ─► [T·B, S, H] ─ product ─► channels
//     kMemory  x ─ product ─► partial sums [T·B, S, C] ─ reduce-scatter ─► channels
//
//     kSpeed   channels ─ product ─► partial sums [T·B, S, H] ─ reduce-scatter of samples ─► x
//     kMemory  the same, reduce-scatter of the hidden size
//
// With a prescaled batch, whose rows T·B stands for then, kSpeed has x of all of them on every
// rank: no all-gather, and an all-reduce of the partial sums; backward, an all-reduce of x's
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tp/group/layout.h"
#include "tp/slices/channel_share.h"
#include "tp/slices/split_linear.h"

namespace smp::tp {

/// Returns how a layer into a block is cut; its outputs are the channels of `share`.
LinearCut cut_of_first(Layout layout, const ChannelShare& share);
/// Returns how a layer out of a block is cut; its inputs are the channels of `share`.
LinearCut cut_of_second(Layout layout, const ChannelShare& share);

/// Returns the layer into a block; its outputs are the channels of `share`.
SplitLinear first_product(Layout layout, std::int64_t in_features, std::int64_t out_features,
                          const ChannelShare& share, NormalDeviation deviation, bool has_bias);
/// Returns the layer out of a block; its inputs are the channels of `share`.
SplitLinear second_product(Layout layout, std::int64_t in_features, std::int64_t out_features,
                           const ChannelShare& share, NormalDeviation deviation, bool has_bias);

/// Returns x as first products read it: with kSpeed the samples of all ranks. With kSpeed forward
/// sends (T-1)·B·S·H elements from each rank, and backward as many.
at::Tensor read_by_products(Layout layout, const at::Tensor& x);

/// The layer of a first product, and the channels that each rank computes of it.
struct Projection {
  const SplitLinear& layer;
  const ChannelShare& share;
};

/// Returns this rank's channels of several projections of one input, each [T·B, S, share.count]. It
/// is one product (joined_product.h), and with kMemory one reduce-scatter of all: forward sends
/// (T-1)·B·S elements from each rank for each channel of the projections, backward as many.
std::vector<at::Tensor> channels_of(Layout layout, const at::Tensor& read,
                                    const std::vector<Projection>& projections);

/// Returns the same of what is between blocks, x, in any layout; with kSequence of all `length`
/// positions, of which a rank keeps its own for backward (sequence_parts.h). With kSequence of a
/// batch of N rows forward sends (T-1)/T·N·S·H elements from each rank, and backward twice as many.
std::vector<at::Tensor> channels_between(Layout layout, const at::Tensor& x,
                                         const std::vector<Projection>& projections,
                                         std::int64_t length = 0);

/// Returns the second product in the form of x, with the bias if there is one. Forward sends
/// (T-1)·B·S·H elements from each rank, backward as many.
at::Tensor joined_by(Layout layout, const SplitLinear& layer, const at::Tensor& channels);

}  // namespace smp::tp
