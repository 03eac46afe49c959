// tp/layers/rotary_of_ranks.cpp: see the header.
#include "tp/layers/rotary_of_ranks.h"

#include <ATen/ATen.h>

#include <vector>

#include "tp/group/tensor_parallel.h"

namespace smp::tp {

std::tuple<at::Tensor, at::Tensor> turned_for_ranks(nn::RotaryEmbeddingImpl& rotary,
                                                    const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& positions) {
  const auto& group = TensorParallel::current();
  const bool apart = rotary.options.scaling() == nn::RotaryScaling::kDynamic &&
                     positions.defined() && positions.size(0) == query.size(0) &&
                     !group.same_batch();
  if (!apart) return rotary.forward(query, key, positions);
  const auto of_ranks = [&](const at::Tensor& all) { return all.tensor_split(group.size()); };
  const auto queries = of_ranks(query), keys = of_ranks(key), places = of_ranks(positions);
  std::vector<at::Tensor> turned_queries, turned_keys;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const auto [of_queries, of_keys] = rotary.forward(queries[i], keys[i], places[i]);
    turned_queries.push_back(of_queries);
    turned_keys.push_back(of_keys);
  }
  return {at::cat(turned_queries), at::cat(turned_keys)};
}

}  // namespace smp::tp
