// samples/branch/models.h: three models whose control flow is not a list of layers.
//
// B rows of a microbatch. All three are written as for one process; which rank a module lives on
// makes no difference to the code that calls it.
#pragma once

#include <smp/smp.h>
#include <torch/torch.h>

namespace branch {

namespace nn = smp::nn;
using torch::Tensor;

/// Two layers with a tanh between them.
class MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(int64_t inputs, int64_t hidden, int64_t outputs);
  Tensor forward(const Tensor& x);

 private:
  nn::Linear first_, second_;
};
SMP_MODULE(Mlp);

/// A branch that depends on the data: each microbatch takes one of two experts, so in one step some
/// microbatches go to one rank and some to another.
class ExpertsImpl : public torch::nn::Module {
 public:
  ExpertsImpl();
  /// [B, 8] to [B, 1].
  Tensor forward(const Tensor& x);

 private:
  Mlp calm_, wild_;
};
SMP_MODULE(Experts);

/// A loop that depends on the data, around one module that is used again and again.
class RefinerImpl : public torch::nn::Module {
 public:
  RefinerImpl();
  /// [B, 8] to [B, 1].
  Tensor forward(const Tensor& x);

 private:
  Mlp encode_, refine_, decode_;
};
SMP_MODULE(Refiner);

/// Which user looked at which item.
struct Visit {
  Tensor user;  ///< [B] int64
  Tensor item;  ///< [B] int64
};

/// One tower of a recommender: a table and an MLP.
class TowerImpl : public torch::nn::Module {
 public:
  explicit TowerImpl(int64_t count);
  /// [B] ids to [B, 16].
  Tensor forward(const Tensor& ids);

 private:
  nn::Embedding table_;
  Mlp mlp_;
};
SMP_MODULE(Tower);

/// Two towers side by side: neither comes before the other.
class RecommenderImpl : public torch::nn::Module {
 public:
  RecommenderImpl(int64_t users, int64_t items);
  /// A score [B] for each visit; a struct crosses ranks without a macro.
  Tensor forward(const Visit& visit);

 private:
  Tower users_, items_;
};
SMP_MODULE(Recommender);

}  // namespace branch
