// tp/slices/split_rms_norm.h: the norms of Llama-shaped layers, of what a rank has between blocks
// and of its heads.
#pragma once

#include <torch/nn/pimpl.h>

#include "smp/nn/rms_norm.h"
#include "smp/tp/distributed_module.h"
#include "tp/group/layout.h"
#include "tp/slices/split_linear.h"

namespace smp::tp {

/// The RMSNorm of a layer. Between blocks it is whole on every rank with kSpeed, which normalises
/// its own samples, and with kSequence, its own positions; with kMemory weight and rows are cut.
/// Keeps what RMSNorm keeps.
class SplitRmsNormImpl : public DistributedModule {
 public:
  /// Takes the weight of `whole`.
  SplitRmsNormImpl(const nn::RMSNormImpl& whole, Layout layout, Keep keep);
  /// Normalises rows between blocks: [.., W], or with kMemory slices [.., W/T] of the same rows on
  /// all ranks, of which sums of squares, one number a row, are added up in one all-reduce, in
  /// forward and in backward. Suspends with kMemory.
  at::Tensor forward(const at::Tensor& x);
  /// Normalises rows that no other rank has, such as its heads: [.., W], with a weight that is not
  /// cut. What the ranks give to the weight's gradient is added up.
  at::Tensor of_own_rows(const at::Tensor& x);

  at::Tensor weight;  ///< [W], or [W/T]

 private:
  at::Tensor of_slices(const at::Tensor& slices) const;

  const Layout layout_;
  const nn::RMSNormOptions options_;
};

TORCH_MODULE(SplitRmsNorm);

}  // namespace smp::tp
