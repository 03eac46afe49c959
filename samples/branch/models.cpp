// samples/branch/models.cpp: the branch, the loop and the two towers.
#include "models.h"

namespace branch {

MlpImpl::MlpImpl(int64_t inputs, int64_t hidden, int64_t outputs)
    : first_(register_module("first", nn::Linear(inputs, hidden))),
      second_(register_module("second", nn::Linear(hidden, outputs))) {}

Tensor MlpImpl::forward(const Tensor& x) { return second_(torch::tanh(first_(x))); }

ExpertsImpl::ExpertsImpl()
    : calm_(register_module("calm", Mlp(8, 64, 1))),
      wild_(register_module("wild", Mlp(8, 64, 1))) {}

Tensor ExpertsImpl::forward(const Tensor& x) {
  const bool is_wild = x.var().item<float>() > 1.0F;
  return is_wild ? wild_(x) : calm_(x);
}

RefinerImpl::RefinerImpl()
    : encode_(register_module("encode", Mlp(8, 64, 16))),
      refine_(register_module("refine", Mlp(16, 64, 16))),
      decode_(register_module("decode", Mlp(16, 64, 1))) {}

Tensor RefinerImpl::forward(const Tensor& x) {
  Tensor state = encode_(x);
  for (int round = 0; round < 8; ++round) {
    const Tensor change = refine_(state);
    state = state + change;
    if (change.abs().mean().item<float>() < 0.05F) break;
  }
  return decode_(state);
}

TowerImpl::TowerImpl(int64_t count)
    : table_(register_module("table", nn::Embedding(count, 32))),
      mlp_(register_module("mlp", Mlp(32, 64, 16))) {}

Tensor TowerImpl::forward(const Tensor& ids) { return mlp_(table_(ids)); }

RecommenderImpl::RecommenderImpl(int64_t users, int64_t items)
    : users_(register_module("users", Tower(users))),
      items_(register_module("items", Tower(items))) {}

Tensor RecommenderImpl::forward(const Visit& visit) {
  return (users_(visit.user) * items_(visit.item)).sum(-1);
}

}  // namespace branch
