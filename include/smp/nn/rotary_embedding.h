// smp/nn/rotary_embedding.h: positions as rotations of queries and keys.
//
// B rows, H heads, T tokens, D elements of a head.
#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <tuple>
#include <utility>

#include "smp/detail/export.h"
#include "smp/nn/layer.h"

namespace smp {
namespace nn {

/// How frequencies are stretched for contexts longer than those of the pre-training. The names are
/// Hugging Face's `rope_type`.
enum class RotaryScaling : std::uint8_t {
  kDefault,  ///< none
  kLinear,   ///< all are divided by `factor`
  kDynamic,  ///< the base grows with the sequence, from `max_positions` on
  kLlama3,   ///< long waves are divided by `factor`, short ones kept, those between interpolated
  kYarn,     ///< a ramp between both, and cosines and sines multiplied by the attention factor
};

/// Options of RotaryEmbedding. The names are those of Hugging Face's `rope_parameters`, where it
/// has one.
struct RotaryEmbeddingOptions {
  RotaryEmbeddingOptions(std::int64_t head_dim) : head_dim_(head_dim) {}  // NOLINT

  /// D, which must be even.
  TORCH_ARG(std::int64_t, head_dim);
  /// The base of the wave lengths.
  TORCH_ARG(double, rope_theta) = 10000;
  TORCH_ARG(RotaryScaling, scaling) = RotaryScaling::kDefault;
  /// By how much the context is stretched; of all scalings but kDefault.
  TORCH_ARG(double, factor) = 1;
  /// `max_position_embeddings` of the model; of kDynamic.
  TORCH_ARG(std::int64_t, max_positions) = 2048;
  /// `original_max_position_embeddings`, the context of the pre-training; of kLlama3 and kYarn.
  TORCH_ARG(std::int64_t, original_max_positions) = 8192;
  /// Waves longer than the original context over this are divided by `factor`; of kLlama3.
  TORCH_ARG(double, low_freq_factor) = 1;
  /// Waves shorter than the original context over this are kept; of kLlama3.
  TORCH_ARG(double, high_freq_factor) = 4;
  /// Turns within the original context from which on a wave is kept; of kYarn.
  TORCH_ARG(double, beta_fast) = 32;
  /// Turns within the original context up to which a wave is divided by `factor`; of kYarn.
  TORCH_ARG(double, beta_slow) = 1;
  /// Whether the ramp begins and ends at whole elements; of kYarn.
  TORCH_ARG(bool, truncate) = true;
  /// What cosines and sines are multiplied by, if not what follows from `factor`; of kYarn.
  TORCH_ARG(std::optional<double>, attention_factor) = std::nullopt;
  /// With `mscale_all_dim`, what the attention factor follows from; of kYarn.
  TORCH_ARG(std::optional<double>, mscale) = std::nullopt;
  TORCH_ARG(std::optional<double>, mscale_all_dim) = std::nullopt;
};

/// Rotates elements i and i + D/2 of each query and key by an angle that grows with the token's
/// position (Su et al. 2021, arXiv 2104.09864; the half-split form of Llama).
///
/// There is no buffer: angles, cosines and sines are made in float32 where they are used, whatever
/// the module's dtype, and then cast to that of the queries, but not under autocast. A table that
/// to(torch::kBFloat16) rounds would move scores by more the later a token comes. kDynamic goes by
/// the longest position of the call; Hugging Face's goes on with the longest that it ever saw.
class SMP_API RotaryEmbeddingImpl : public torch::nn::Module {
 public:
  /// @throws UsageError  D is odd or not positive, or an option of the scaling is out of range.
  explicit RotaryEmbeddingImpl(const RotaryEmbeddingOptions& options);

  /// Rotates both.
  /// @param query      [B, H, T, D]
  /// @param key        [B, K, T, D]
  /// @param positions  integers [T] or [B, T]; 0 to T-1 if undefined
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& query,
                                                   const torch::Tensor& key,
                                                   const torch::Tensor& positions = {});

  /// Returns the angles by which a position turns each pair of elements: float32 [D/2].
  /// @param length  of the sequence, which counts for kDynamic only
  /// @param device  where they are
  torch::Tensor frequencies(std::int64_t length, torch::Device device = torch::kCPU) const;
  /// Returns what cosines and sines are multiplied by: 1 but for kYarn.
  double attention_factor() const;

  void pretty_print(std::ostream& stream) const override;

  const RotaryEmbeddingOptions options;

 private:
  std::pair<torch::Tensor, torch::Tensor> turns(const torch::Tensor& query,
                                                const torch::Tensor& positions) const;
};

}  // namespace nn

template <>
inline constexpr bool draws_random_v<nn::RotaryEmbeddingImpl> = false;

namespace nn {

/// Like RotaryEmbeddingImpl, routed.
SMP_MODULE(RotaryEmbedding);

}  // namespace nn
}  // namespace smp
