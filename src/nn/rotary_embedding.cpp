// nn/rotary_embedding.cpp: see smp/nn/rotary_embedding.h. The order of operations is that of
// Hugging Face's transformers 5, so that frequencies are equal to the bit.
#include "smp/nn/rotary_embedding.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace smp::nn {
namespace {

/// Exponents of the base: float32 [D/2], 0 to nearly 1.
at::Tensor exponents(std::int64_t head_dim, at::Device device) {
  return at::arange(0, head_dim, 2, at::device(device).dtype(at::kFloat)) / head_dim;
}

at::Tensor frequencies_of(double base, std::int64_t head_dim, at::Device device) {
  return at::pow(base, exponents(head_dim, device)).reciprocal();
}

/// The base of kDynamic for sequences of `length` tokens.
double stretched_base(const RotaryEmbeddingOptions& options, std::int64_t length) {
  const auto most = static_cast<double>(options.max_positions());
  const double stretch = options.factor() * std::max(static_cast<double>(length), most) / most -
                         (options.factor() - 1);
  const auto size = static_cast<double>(options.head_dim());
  return options.rope_theta() * std::pow(stretch, size / (size - 2));
}

at::Tensor llama3_frequencies(const RotaryEmbeddingOptions& options, const at::Tensor& plain) {
  const auto context = static_cast<double>(options.original_max_positions());
  const auto low = options.low_freq_factor(), high = options.high_freq_factor();
  const auto wave = plain.reciprocal() * (2 * std::numbers::pi);
  const auto divided = at::where(wave > context / low, plain / options.factor(), plain);
  const auto share = (wave.reciprocal() * context - low) / (high - low);
  const auto between = (1 - share) * divided / options.factor() + share * divided;
  const auto is_between = ~(wave < context / high) * ~(wave > context / low);
  return at::where(is_between, between, divided);
}

/// The element whose wave turns `turns` times within the original context.
double element_of(double turns, const RotaryEmbeddingOptions& options) {
  const auto context = static_cast<double>(options.original_max_positions());
  return static_cast<double>(options.head_dim()) *
         std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(options.rope_theta()));
}

at::Tensor yarn_frequencies(const RotaryEmbeddingOptions& options, at::Device device) {
  const auto waves = at::pow(options.rope_theta(), exponents(options.head_dim(), device));
  double low = element_of(options.beta_fast(), options);
  double high = element_of(options.beta_slow(), options);
  if (options.truncate()) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(options.head_dim() - 1));
  if (low == high) high += 0.001;
  const auto element = at::arange(options.head_dim() / 2, waves.options());
  const auto kept = 1 - at::clamp((element - low) / (high - low), 0, 1);
  const auto divided = (options.factor() * waves).reciprocal();
  return divided * (1 - kept) + waves.reciprocal() * kept;
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1;
}

/// [B, heads, T, D] turned by what broadcasts to it.
at::Tensor rotated(const at::Tensor& heads, const at::Tensor& cosine, const at::Tensor& sine) {
  const auto half = heads.size(-1) / 2;
  const auto turned = at::cat({-heads.narrow(-1, half, half), heads.narrow(-1, 0, half)}, -1);
  return heads * cosine + turned * sine;
}

void check_positions(const at::Tensor& positions, std::int64_t tokens) {
  if (!positions.defined()) return;
  SMP_REQUIRE((positions.dim() == 1 || positions.dim() == 2) && positions.size(-1) == tokens,
              "RotaryEmbedding: positions are ", positions.sizes(),
              ", expected [T] or [B, T] with T = ", tokens);
}

void check_scaling(const RotaryEmbeddingOptions& options) {
  SMP_REQUIRE(options.factor() > 0, "RotaryEmbedding: factor is ", options.factor(),
              ", must be positive");
  SMP_REQUIRE(options.max_positions() > 0 && options.original_max_positions() > 0,
              "RotaryEmbedding: max_positions ", options.max_positions(),
              " and original_max_positions ", options.original_max_positions(),
              " must be at least 1");
  SMP_REQUIRE(
      options.scaling() != RotaryScaling::kLlama3 ||
          (options.low_freq_factor() > 0 && options.high_freq_factor() > options.low_freq_factor()),
      "RotaryEmbedding: low_freq_factor ", options.low_freq_factor(),
      " must be positive and less than high_freq_factor ", options.high_freq_factor());
  SMP_REQUIRE(options.scaling() != RotaryScaling::kDynamic || options.head_dim() > 2,
              "RotaryEmbedding: kDynamic needs a head_dim of at least 4");
}

}  // namespace

RotaryEmbeddingImpl::RotaryEmbeddingImpl(const RotaryEmbeddingOptions& with) : options(with) {
  SMP_REQUIRE(options.head_dim() > 0 && options.head_dim() % 2 == 0,
              "RotaryEmbedding: head_dim is ", options.head_dim(),
              ", must be even and positive, as its halves are rotated against one another");
  SMP_REQUIRE(options.rope_theta() > 1, "RotaryEmbedding: rope_theta is ", options.rope_theta(),
              ", must be greater than 1");
  check_scaling(options);
}

void RotaryEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::RotaryEmbedding(" << options.head_dim()
         << ", rope_theta=" << options.rope_theta() << ")";
}

at::Tensor RotaryEmbeddingImpl::frequencies(std::int64_t length, at::Device device) const {
  const auto plain = [&] {
    return frequencies_of(options.rope_theta(), options.head_dim(), device);
  };
  switch (options.scaling()) {
    case RotaryScaling::kDefault:
      return plain();
    case RotaryScaling::kLinear:
      return plain() / options.factor();
    case RotaryScaling::kDynamic:
      return frequencies_of(stretched_base(options, length), options.head_dim(), device);
    case RotaryScaling::kLlama3:
      return llama3_frequencies(options, plain());
    case RotaryScaling::kYarn:
      return yarn_frequencies(options, device);
  }
  throw UsageError("RotaryEmbedding: the scaling is none of RotaryScaling");
}

double RotaryEmbeddingImpl::attention_factor() const {
  if (options.scaling() != RotaryScaling::kYarn) return 1;
  if (options.attention_factor()) return *options.attention_factor();
  const auto one = options.mscale().value_or(0), all = options.mscale_all_dim().value_or(0);
  if (one == 0 || all == 0) return yarn_scale(options.factor(), 1);
  return yarn_scale(options.factor(), one) / yarn_scale(options.factor(), all);
}

std::tuple<at::Tensor, at::Tensor> RotaryEmbeddingImpl::forward(const at::Tensor& query,
                                                                const at::Tensor& key,
                                                                const at::Tensor& positions) {
  SMP_REQUIRE(query.dim() == 4 && key.dim() == 4 && query.size(-1) == options.head_dim() &&
                  key.size(-1) == options.head_dim() && query.size(2) == key.size(2),
              "RotaryEmbedding: queries are ", query.sizes(), " and keys ", key.sizes(),
              ", expected [B, heads, T, ", options.head_dim(), "] of both");
  check_positions(positions, query.size(2));
  const auto [cosine, sine] = turns(query, positions);
  return {rotated(query, cosine, sine), rotated(key, cosine, sine)};
}

/// Cosines and sines in the dtype of `query`, or float32 where autocast has made that, which
/// broadcast to it: [T, D] or [B, 1, T, D].
std::pair<at::Tensor, at::Tensor> RotaryEmbeddingImpl::turns(const at::Tensor& query,
                                                             const at::Tensor& positions) const {
  auto length = query.size(2);
  auto position = positions;
  if (!position.defined()) {
    position = at::arange(length, at::device(query.device()).dtype(at::kLong));
  } else if (options.scaling() == RotaryScaling::kDynamic && position.numel() > 0) {
    length = position.max().item<std::int64_t>() + 1;
  }
  auto angle = position.unsqueeze(-1).to(at::kFloat) * frequencies(length, query.device());
  angle = at::cat({angle, angle}, -1);
  if (angle.dim() == 3) angle = angle.unsqueeze(1);
  const double scale = attention_factor();
  // There is no autocast of shapes alone, and LibTorch refuses to be asked.
  const bool cast = !query.is_meta() && at::autocast::is_autocast_enabled(query.device().type());
  const auto type = cast ? at::kFloat : query.scalar_type();
  return {(angle.cos() * scale).to(type), (angle.sin() * scale).to(type)};
}

}  // namespace smp::nn
