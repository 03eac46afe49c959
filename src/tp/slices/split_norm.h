// tp/slices/split_norm.h: the norms of transformer layers, of what a rank has between blocks
// (paper App. F).
#pragma once

#include <torch/nn/pimpl.h>

#include <cstdint>

#include "smp/tp/distributed_module.h"
#include "tp/group/layout.h"

namespace smp::tp {

/// A torch::nn::LayerNorm over the hidden size, cut along it with kMemory, else whole. The whole
/// has `size` elements, a multiple of T in that case.
class SplitNormImpl : public DistributedModule {
 public:
  SplitNormImpl(Layout layout, std::int64_t size, double epsilon);
  /// @param x  [.., H], or [.., H/T]; of the type of the parameters, or of more bits
  at::Tensor forward(const at::Tensor& x);
  /// Normalises rows [.., H] that no other rank has, with a weight that is not cut: what the ranks
  /// give to its gradient is added up.
  at::Tensor of_own_rows(const at::Tensor& x);

  at::Tensor weight;  ///< [H] or [H/T]
  at::Tensor bias;    ///< [H] or [H/T]

 private:
  const Layout layout_;
  const std::int64_t size_;
  const double epsilon_;
};

TORCH_MODULE(SplitNorm);

}  // namespace smp::tp
