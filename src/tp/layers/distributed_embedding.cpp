// tp/layers/distributed_embedding.cpp: see the header.
#include "smp/tp/distributed_embedding.h"

#include <ATen/ATen.h>
#include <ostream>
#include <vector>

#include "base/check.h"
#include "smp/tp/batch_primitives.h"
#include "tp/group/batch_of_one.h"
#include "tp/group/shorten_rows.h"

namespace smp::nn {
namespace {

/// With norm_type = 0 the norm is a number of elements, which no scale makes smaller.
void require_sliceable(const torch::nn::EmbeddingOptions& options) {
  SMP_REQUIRE_AS(UnsupportedError, !options.max_norm() || options.norm_type() != 0,
                 "DistributedEmbedding: max_norm with norm_type 0 shortens a row again at each "
                 "look-up, and ranks do it once for all of them; choose another norm_type, or use "
                 "smp::nn::Embedding");
}

/// Makes a negative padding_idx count from the start, as torch::nn::Embedding does.
void count_padding_from_start(torch::nn::EmbeddingOptions& options) {
  if (!options.padding_idx()) return;
  const auto index = *options.padding_idx();
  const auto rows = options.num_embeddings();
  SMP_REQUIRE(index >= -rows && index < rows, "DistributedEmbedding: padding_idx ", index,
              " is none of ", rows, " rows; choose one from ", -rows, " to ", rows - 1);
  if (index < 0) options.padding_idx(rows + index);
}

const at::Tensor& given_table(const torch::nn::EmbeddingOptions& options) {
  const auto& table = options._weight();
  SMP_REQUIRE(table.sizes() == at::IntArrayRef({options.num_embeddings(), options.embedding_dim()}),
              "DistributedEmbedding: _weight is ", table.sizes(), ", expected [",
              options.num_embeddings(), ", ", options.embedding_dim(), "]");
  return table;
}

}  // namespace

DistributedEmbeddingImpl::DistributedEmbeddingImpl(const torch::nn::EmbeddingOptions& with)
    : options(with) {
  require_sliceable(options);
  count_padding_from_start(options);
  if (options._weight().defined()) {
    weight = register_slice("weight", given_table(options), 1);
    return;
  }
  const auto padding = options.padding_idx().value_or(-1);
  const auto fill = [padding](const at::Tensor& rows, std::int64_t first) {
    rows.normal_(0, 1);
    if (padding >= first && padding < first + rows.size(0)) rows[padding - first].zero_();
  };
  weight =
      register_drawn_slice("weight", {options.num_embeddings(), options.embedding_dim()}, 1, fill);
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

/// Gradients that are divided by how often an index occurs are so by what it does in one rank's
/// batch, as in one process, where each is a call of its own.
/// @param batch  rows of one rank's batch, of those in `indices`
static at::Tensor look_up(const DistributedEmbeddingImpl& table, const at::Tensor& indices,
                          std::int64_t batch) {
  const auto& options = table.options;
  const auto rows_of = [&](const at::Tensor& some) {
    return at::embedding(table.weight, some, options.padding_idx().value_or(-1),
                         options.scale_grad_by_freq(), options.sparse());
  };
  if (!options.scale_grad_by_freq() || batch == indices.size(0)) return rows_of(indices);
  std::vector<at::Tensor> of_ranks;
  for (const auto& some : indices.split(batch)) of_ranks.push_back(rows_of(some));
  return at::cat(of_ranks);
}

at::Tensor DistributedEmbeddingImpl::forward(const at::Tensor& indices) {
  const auto dtype = indices.scalar_type();
  SMP_REQUIRE(dtype == at::kLong || dtype == at::kInt, "DistributedEmbedding: indices of type ",
              dtype, "; expected torch::kLong or torch::kInt");
  return tp::of_batch(indices, /*row_dims=*/0, [this](const at::Tensor& batch) {
    const auto all = whole_batch_for_tp(batch);
    if (options.max_norm()) {
      // Through float, as torch::nn::functional::embedding() passes both on.
      tp::shorten_rows(weight, all, static_cast<float>(*options.max_norm()),
                       static_cast<float>(options.norm_type()));
    }
    return batch_of_slices_for_tp(look_up(*this, all, batch.size(0)), -1);
  });
}

void DistributedEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::DistributedEmbedding(num_embeddings=" << options.num_embeddings()
         << ", embedding_dim=" << options.embedding_dim();
  if (options.padding_idx()) stream << ", padding_idx=" << *options.padding_idx();
  if (options.max_norm()) stream << ", max_norm=" << *options.max_norm();
  stream << ")";
}

}  // namespace smp::nn
