// tp/distributed_embedding.cpp: see the header.
#include "smp/tp/distributed_embedding.h"

#include <ATen/ATen.h>
#include <ostream>

#include "base/check.h"
#include "smp/tp/batch_primitives.h"

namespace smp::nn {
namespace {

void require_sliceable(const torch::nn::EmbeddingOptions& options) {
  SMP_REQUIRE_AS(UnsupportedError, !options.max_norm(),
                 "DistributedEmbedding: max_norm needs the norms of whole rows, of which each rank "
                 "holds a part; leave it out, or use smp::nn::Embedding");
  SMP_REQUIRE_AS(UnsupportedError, !options.scale_grad_by_freq(),
                 "DistributedEmbedding: scale_grad_by_freq would count the indices of all ranks "
                 "instead of one's own; leave it out, or use smp::nn::Embedding");
}

}  // namespace

/// The whole table is made first, because its values are drawn as a whole.
DistributedEmbeddingImpl::DistributedEmbeddingImpl(const torch::nn::EmbeddingOptions& with)
    : options(with) {
  require_sliceable(options);
  const torch::nn::EmbeddingImpl whole(options);
  options = whole.options;  // padding_idx counted from the end is counted from 0 there
  weight = register_slice("weight", whole.weight, 1);
}

DistributedEmbeddingImpl::DistributedEmbeddingImpl(torch::nn::EmbeddingImpl& original)
    : options(original.options) {
  weight = adopt_slice("weight", original.weight, 1);
}

std::string DistributedEmbeddingImpl::obstacle(const torch::nn::EmbeddingImpl& original,
                                               int ranks) {
  const auto& options = original.options;
  if (options.embedding_dim() % ranks != 0) {
    return base::concat("embedding_dim ", options.embedding_dim(), " cannot be divided by ", ranks);
  }
  try {
    require_sliceable(options);
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return {};
}

at::Tensor DistributedEmbeddingImpl::forward(const at::Tensor& indices) {
  SMP_REQUIRE(indices.dim() >= 1, "DistributedEmbedding: indices without dimensions; expected ",
              "[batch, ..]");
  SMP_REQUIRE(!at::isFloatingType(indices.scalar_type()), "DistributedEmbedding: indices of type ",
              indices.scalar_type(), "; expected whole numbers (torch::kLong)");
  const auto all = whole_batch_for_tp(indices);
  const auto rows = at::embedding(weight, all, options.padding_idx().value_or(-1),
                                  /*scale_grad_by_freq=*/false, options.sparse());
  return batch_of_slices_for_tp(rows, -1);
}

void DistributedEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::DistributedEmbedding(num_embeddings=" << options.num_embeddings()
         << ", embedding_dim=" << options.embedding_dim();
  if (options.padding_idx()) stream << ", padding_idx=" << *options.padding_idx();
  stream << ")";
}

}  // namespace smp::nn
