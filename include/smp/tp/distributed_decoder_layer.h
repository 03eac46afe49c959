// smp/tp/distributed_decoder_layer.h: one block of a Llama-shaped model over the ranks of a
// TP_GROUP.
//
// B rows of one rank's batch, S sequence, W width, T tensor-parallel ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "smp/module.h"
#include "smp/nn/decoder_layer.h"

namespace smp {
namespace tp {
enum class Keep : std::uint8_t;
}
namespace nn {

/// An nn::DecoderLayer of sliced parts: x + attention(norm(x)), then + mlp(norm(·))
/// (DistributedGroupedQueryAttention, DistributedGatedMlp). With "speed" every rank holds the norms
/// whole and applies them, and residual sums, to its own samples. With "memory" weights of norms
/// are sliced, everything between the blocks is [T·B, S, W/T], a norm adds up one number a row over
/// the ranks, and samples are exchanged once on entering and once on leaving the layer. Sends what
/// its two parts send; "memory" in addition 2·(T-1)/T·B·S·W elements, and 4·(T-1)·B·S for the
/// norms.
///
/// With "sequence" a prescaled batch of N rows is cut along its positions between the blocks, [N,
/// ceil(S/T), W] on each rank: norms and residual sums are not repeated on T ranks (Korthikanti et
/// al. 2022). S may be any number. What all-reduces of "speed" send, all-gathers and
/// reduce-scatters do then, 4·(T-1)/T·N·S·W elements forward; leaving the layer is an all-gather
/// more, and so is the backward of entering it. Of what its products read a rank keeps its own
/// positions, and backward gathers the others again, 2·(T-1)/T·N·S·W. Where each rank has samples
/// of its own it is "speed", which cuts the batch. In a row of L such layers the state stays cut
/// from one to the next, and they send (4·L+1) and (6·L+1)·(T-1)/T·N·S·W together.
class SMP_API DistributedDecoderLayerImpl : public torch::nn::Module {
 public:
  /// Makes this rank's slices of a new layer, which starts from the values of nn::DecoderLayer
  /// after the same torch::manual_seed.
  /// @param options   of the whole layer
  /// @param optimize  "speed", "memory" or "sequence"; empty: as the setting
  /// @throws UsageError  as nn::DecoderLayer and the parts; no session runs.
  explicit DistributedDecoderLayerImpl(const DecoderLayerOptions& options,
                                       const std::string& optimize = {});
  /// Stands in for `original`, whose parameters become slices.
  explicit DistributedDecoderLayerImpl(DecoderLayerImpl& original);
  ~DistributedDecoderLayerImpl() override;
  /// Returns why `original` cannot be spread over `ranks` ranks, or an empty text if it can.
  static std::string obstacle(const DecoderLayerImpl& original, int ranks);

  /// Computes the block for this rank's batch: [B, S, W] to [B, S, W]. Arguments are those of
  /// DistributedGroupedQueryAttention. @throws UsageError  shapes do not fit.
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& positions = {},
                     const at::Tensor& tokens = {});

  const DecoderLayerOptions options;

 private:
  struct Parts;
  DistributedDecoderLayerImpl(const DecoderLayerImpl& whole, const std::string& optimize,
                              tp::Keep keep);
  std::shared_ptr<Parts> parts_;
};

/// Like DistributedDecoderLayerImpl, routed.
SMP_MODULE(DistributedDecoderLayer);

}  // namespace nn
}  // namespace smp
