// samples/models/recommender.h: two towers that do not depend on each other, and experts that two
// tasks share through gates of their own (a mixture-of-experts recommender). B visits.
#pragma once

#include <smp/smp.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

namespace models {

namespace nn = smp::nn;
using torch::Tensor;

/// Which user looked at which item, and whether he clicked and bought.
struct Visits {
  Tensor user, item;       ///< [B] int64
  Tensor clicked, bought;  ///< [B] float, 0 or 1
};

class MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(int64_t in, int64_t hidden, int64_t out);
  Tensor forward(const Tensor& x);

 private:
  nn::Linear first_, second_;
};
SMP_MODULE(Mlp);

class TowerImpl : public torch::nn::Module {
 public:
  explicit TowerImpl(int64_t count);
  /// [B] ids to [B, 32].
  Tensor forward(const Tensor& ids);

 private:
  nn::Embedding table_;
  Mlp mlp_;
};
SMP_MODULE(Tower);

class RecommenderImpl : public torch::nn::Module {
 public:
  RecommenderImpl();
  /// Scores of a click and of a purchase, [B] each.
  std::pair<Tensor, Tensor> forward(const Tensor& user, const Tensor& item);

 private:
  Tower users_, items_;
  std::vector<Mlp> experts_;
  nn::Linear click_gate_{nullptr}, purchase_gate_{nullptr};
  Mlp click_{nullptr}, purchase_{nullptr};
};
SMP_MODULE(Recommender);

/// Visits in which users like items whose number is close to theirs.
Visits draw_visits(int64_t rows);

}  // namespace models
