// samples/models/recommender.cpp: towers, experts and gates.
#include "recommender.h"

#include <string>

namespace models {
namespace {

constexpr int64_t kUsers = 2000;
constexpr int64_t kItems = 500;
constexpr int kExperts = 4;

/// The experts' answers [B, experts, D], weighted by a gate's scores [B, experts].
Tensor mixed(const Tensor& answers, const Tensor& scores) {
  return (answers * torch::softmax(scores, -1).unsqueeze(-1)).sum(1);
}

}  // namespace

MlpImpl::MlpImpl(int64_t in, int64_t hidden, int64_t out)
    : first_(register_module("first", nn::Linear(in, hidden))),
      second_(register_module("second", nn::Linear(hidden, out))) {}

Tensor MlpImpl::forward(const Tensor& x) { return second_(torch::relu(first_(x))); }

TowerImpl::TowerImpl(int64_t count)
    : table_(register_module("table", nn::Embedding(count, 64))),
      mlp_(register_module("mlp", Mlp(64, 128, 32))) {}

Tensor TowerImpl::forward(const Tensor& ids) { return mlp_(table_(ids)); }

RecommenderImpl::RecommenderImpl()
    : users_(register_module("users", Tower(kUsers))),
      items_(register_module("items", Tower(kItems))) {
  for (int i = 0; i < kExperts; ++i) {
    experts_.push_back(register_module("expert" + std::to_string(i), Mlp(64, 128, 32)));
  }
  click_gate_ = register_module("click_gate", nn::Linear(64, kExperts));
  purchase_gate_ = register_module("purchase_gate", nn::Linear(64, kExperts));
  click_ = register_module("click", Mlp(32, 64, 1));
  purchase_ = register_module("purchase", Mlp(32, 64, 1));
}

std::pair<Tensor, Tensor> RecommenderImpl::forward(const Tensor& user, const Tensor& item) {
  const auto visit = torch::cat({users_(user), items_(item)}, -1);
  std::vector<Tensor> answers;
  for (auto& expert : experts_) answers.push_back(expert(visit));
  const auto all = torch::stack(answers, 1);
  return {click_(mixed(all, click_gate_(visit))).squeeze(-1),
          purchase_(mixed(all, purchase_gate_(visit))).squeeze(-1)};
}

Visits draw_visits(int64_t rows) {
  const auto user = torch::randint(kUsers, {rows});
  const auto item = torch::randint(kItems, {rows});
  const auto distance = (user % kItems - item).abs();
  return {user, item, (distance < 100).to(torch::kFloat), (distance < 30).to(torch::kFloat)};
}

}  // namespace models
