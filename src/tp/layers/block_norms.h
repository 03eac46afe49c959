// tp/layers/block_norms.h: the norms of a transformer's block, of what a rank has between blocks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "tp/group/layout.h"
#include "tp/slices/split_norm.h"
#include "tp/slices/split_rms_norm.h"

namespace smp::tp {

/// A LayerNorm, an RMSNorm or nothing, which leaves rows as they are.
class BlockNorm {
 public:
  /// Nothing.
  BlockNorm() = default;
  /// @param kind    "layer" or "rms"
  /// @param layout  kMemory: cut along the hidden size; else whole
  /// @param layer   for the message
  /// @throws UsageError  another kind.
  BlockNorm(const std::string& kind, Layout layout, std::int64_t size, double epsilon,
            const char* layer);

  /// Registers the norm as a child of `parent`, if there is one.
  void register_at(torch::nn::Module& parent, const char* name) const;
  /// Normalises what a rank has `between` blocks: [.., H], or [.., H/T] with kMemory, in which the
  /// norm was made then.
  at::Tensor operator()(const at::Tensor& x, Layout between);

 private:
  SplitNorm layer_{nullptr};
  SplitRmsNorm rms_{nullptr};
};

/// The norms before and after a block.
struct BlockNorms {
  /// Makes those that the options want. @throws UsageError  they want none, or an unknown kind.
  template <class Options>
  static BlockNorms of(const Options& options, Layout layout, const char* layer) {
    require_one(options.pre_layernorm || options.post_layernorm, layer);
    const auto norm = [&](bool wanted) {
      return wanted ? BlockNorm(options.norm, layout, options.hidden_size,
                                options.layernorm_epsilon, layer)
                    : BlockNorm();
    };
    return {norm(options.pre_layernorm), norm(options.post_layernorm)};
  }

  BlockNorm before, after;

 private:
  static void require_one(bool any, const char* layer);
};

}  // namespace smp::tp
