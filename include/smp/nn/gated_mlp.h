// smp/nn/gated_mlp.h: feed-forward networks with a gate (SwiGLU, GeGLU).
#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <ostream>

#include "smp/detail/export.h"
#include "smp/nn/linear.h"

namespace smp {
namespace nn {

/// What a gate's projection goes through.
enum class GateActivation : std::uint8_t {
  kSilu,      ///< SwiGLU: Llama, Mistral, Qwen
  kGeluTanh,  ///< GeGLU in the approximation by tanh: Gemma
  kGelu,      ///< GeGLU
};

/// Options of GatedMlp.
struct GatedMlpOptions {
  GatedMlpOptions(std::int64_t width, std::int64_t inner_width)
      : width_(width), inner_width_(inner_width) {}

  /// The size of the last axis of input and output.
  TORCH_ARG(std::int64_t, width);
  /// The size of the gate.
  TORCH_ARG(std::int64_t, inner_width);
  TORCH_ARG(GateActivation, activation) = GateActivation::kSilu;
  /// Whether the three projections have biases.
  TORCH_ARG(bool, bias) = false;
};

/// down_proj(activation(gate_proj(x)) * up_proj(x)): [.., W] to [.., W] (Shazeer 2020, arXiv
/// 2002.05202). Its parameters have the names of Hugging Face's Llama.
class SMP_API GatedMlpImpl : public torch::nn::Module {
 public:
  /// @throws UsageError  a width is not positive.
  explicit GatedMlpImpl(const GatedMlpOptions& options);

  /// Computes the network for the last axis, which must have W elements.
  torch::Tensor forward(const torch::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

  const GatedMlpOptions options;
  Linear gate_proj, up_proj, down_proj;
};

}  // namespace nn

template <>
inline constexpr bool draws_random_v<nn::GatedMlpImpl> = false;

namespace nn {

/// Like GatedMlpImpl, routed.
SMP_MODULE(GatedMlp);

}  // namespace nn
}  // namespace smp
