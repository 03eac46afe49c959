// smp/nn/embedding.h: look-up tables, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/embedding.h>

#include "smp/nn/layer.h"

namespace smp {

namespace nn::detail {

/// Returns a routed holder around a copy of the module that torch's own factory makes.
template <class Holder, class Plain, class Options>
Holder from_pretrained(const torch::Tensor& embeddings, const Options& options) {
  using Routed = typename Holder::Impl;
  return Holder(std::make_shared<Routed>(smp::detail::Rewrap{},
                                         *Plain::from_pretrained(embeddings, options)));
}

}  // namespace nn::detail

SMP_NN_NEVER_DRAWS(EmbeddingImpl)
SMP_NN_NEVER_DRAWS(EmbeddingBagImpl)

namespace nn {

using torch::nn::EmbeddingBagImpl;
using torch::nn::EmbeddingImpl;

/// Like torch::nn::Embedding.
class Embedding : public RoutedHolder<EmbeddingImpl> {
 public:
  using Impl [[maybe_unused]] = Routed<EmbeddingImpl>;
  using RoutedHolder<EmbeddingImpl>::RoutedHolder;

  static Embedding from_pretrained(const torch::Tensor& embeddings,
                                   const torch::nn::EmbeddingFromPretrainedOptions& options = {}) {
    return detail::from_pretrained<Embedding, torch::nn::Embedding>(embeddings, options);
  }
};

/// Like torch::nn::EmbeddingBag.
class EmbeddingBag : public RoutedHolder<EmbeddingBagImpl> {
 public:
  using Impl [[maybe_unused]] = Routed<EmbeddingBagImpl>;
  using RoutedHolder<EmbeddingBagImpl>::RoutedHolder;

  static EmbeddingBag from_pretrained(
      const torch::Tensor& embeddings,
      const torch::nn::EmbeddingBagFromPretrainedOptions& options = {}) {
    return detail::from_pretrained<EmbeddingBag, torch::nn::EmbeddingBag>(embeddings, options);
  }
};

}  // namespace nn

namespace nn {

using torch::nn::EmbeddingBagFromPretrainedOptions;
using torch::nn::EmbeddingBagOptions;
using torch::nn::EmbeddingFromPretrainedOptions;
using torch::nn::EmbeddingOptions;

}  // namespace nn
}  // namespace smp
