// smp::clip_grad_norm_ and clip_grad_value_ against torch::nn::utils in one process: any norm, any
// set of parameters, dense and sparse gradients.
#include <torch/nn/modules/embedding.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <utility>

#include "api/chain_model.h"

namespace smp {
namespace clip_grad_test {

using at::Tensor;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An embedding with sparse gradients in front of a chain.
struct WordsImpl : torch::nn::Module {
  WordsImpl()
      : words(register_module("words",
                              nn::Embedding(torch::nn::EmbeddingOptions(9, 3).sparse(true)))),
        chain(register_module("chain", Chain())),
        idle(register_module("idle", nn::Linear(2, 2))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& indices) { return chain(words(indices).sum(1)); }
  nn::Embedding words;
  Chain chain;
  nn::Linear idle;  // never called
};
SMP_MODULE(Words);

Words make_words() {
  torch::manual_seed(9);
  return {};
}
Tensor indices() { return torch::arange(12).remainder(7).reshape({4, 3}); }
Tensor outside() { return torch::full({2}, 3.0, torch::kDouble).requires_grad_(); }
Tensor loss_of(const Tensor& y, const Tensor& scale) { return (y * scale).square().sum() * 7; }

// One process; `clip` gets the parameters.
template <class Clip>
std::pair<std::vector<Tensor>, double> plain_gradients(const Clip& clip) {
  auto net = make_words();
  const auto scale = outside();
  for (const auto& slice : indices().chunk(2)) (loss_of(net(slice), scale) / 2).backward();
  auto all = net->parameters();
  all.push_back(scale);
  const double norm = clip(all);
  std::vector<Tensor> gradients;
  for (auto& parameter : all) gradients.push_back(parameter.grad());
  return {gradients, norm};
}

// The same on some ranks.
template <class Clip>
void expect_clipped(const Clip& clip, const std::vector<Tensor>& expected, double norm) {
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    on_ranks(ranks, [&] {
      auto net = make_words();
      DistributedModel model(net);
      model.set_partition("", 0);
      model.set_partition("words", size() - 1);
      model.set_partition("chain.b", 1 % size());
      model.set_partition("chain.c", 2 % size());
      const auto scale = outside();
      auto train = smp::step([&](Tensor x) {
        if (!is_tracing()) model.backward(loss_of(model(x), scale));
      });
      train(indices());
      auto all = model.parameters();
      all.push_back(scale);
      const double got = clip(model, all);
      if (norm >= 0) {
        EXPECT_NEAR(got, norm, 1e-12 * norm);
      }
      for (std::size_t i = 0; i < all.size(); ++i) {
        const bool here = i + 1 == all.size() ? rank() == 0 : model.owns(all[i]);
        if (!here || !expected[i].defined()) {
          EXPECT_FALSE(all[i].grad().defined());
          continue;
        }
        expect_close(all[i].grad().to_dense(), expected[i].to_dense(), std::to_string(i));
      }
    });
  }
}

TEST(ClipGrad, NormsOfAnyKindEqualLibTorchs) {
  for (const double type : {2.0, 1.0, 3.5, 0.0}) {
    SCOPED_TRACE(type);
    const auto [expected, norm] = plain_gradients([type](std::vector<Tensor>& all) {
      all[0].mutable_grad() = all[0].grad().to_dense();  // for LibTorch
      return torch::nn::utils::clip_grad_norm_(std::as_const(all), 0.3, type);
    });
    expect_clipped(
        [type](auto&, std::vector<Tensor>& all) { return clip_grad_norm_(all, 0.3, type); },
        expected, norm);
  }
}

TEST(ClipGrad, TheGreatestElementEqualsLibTorchs) {
  const auto [expected, norm] = plain_gradients([](std::vector<Tensor>& all) {
    all[0].mutable_grad() = all[0].grad().to_dense();
    return torch::nn::utils::clip_grad_norm_(std::as_const(all), 0.3, kInfinity);
  });
  expect_clipped(
      [](auto&, std::vector<Tensor>& all) { return clip_grad_norm_(all, 0.3, kInfinity); },
      expected, norm);
}

TEST(ClipGrad, LibTorchsOwnFunctionMeansAllRanks) {
  const auto [expected, norm] = plain_gradients([](std::vector<Tensor>& all) {
    all[0].mutable_grad() = all[0].grad().to_dense();
    return torch::nn::utils::clip_grad_norm_(std::as_const(all), 0.3);
  });
  expect_clipped(
      [](auto&, std::vector<Tensor>& all) { return torch::nn::utils::clip_grad_norm_(all, 0.3); },
      expected, norm);
}

TEST(ClipGrad, ANormBelowTheLimitChangesNothing) {
  const auto [expected, norm] = plain_gradients([](std::vector<Tensor>& all) {
    all[0].mutable_grad() = all[0].grad().to_dense();
    return torch::nn::utils::clip_grad_norm_(std::as_const(all), 1e9);
  });
  expect_clipped([](auto&, std::vector<Tensor>& all) { return clip_grad_norm_(all, 1e9); },
                 expected, norm);
}

TEST(ClipGrad, ValuesEqualLibTorchs) {
  const auto [expected, norm] = plain_gradients([](std::vector<Tensor>& all) {
    all[0].mutable_grad() = all[0].grad().to_dense();
    torch::nn::utils::clip_grad_value_(all, 0.05);
    return -1;
  });
  expect_clipped(
      [](auto&, std::vector<Tensor>& all) {
        clip_grad_value_(all, 0.05);
        return 0;
      },
      expected, norm);
}

TEST(ClipGrad, OfModelsAndOfTheOwnPartsIsOfAllOfThem) {
  on_ranks(3, [] {
    auto first = make_chain();
    auto second = make_chain();
    DistributedModel a(first), b(second);
    for (auto* model : {&a, &b}) {
      model->set_partition("", 0);
      model->set_partition("b", 1);
    }
    b.set_partition("c", 2);
    auto train = smp::step([&](Tensor x) {
      if (!is_tracing()) a.backward(a(x).sum() + b(x).square().sum());
    });
    train(rows(4));
    auto plain_a = make_chain();
    auto plain_b = make_chain();
    for (const auto& x : rows(4).chunk(2)) {
      ((plain_a(x).sum() + plain_b(x).square().sum()) / 2).backward();
    }
    auto all = plain_a->parameters();
    for (auto& parameter : plain_b->parameters()) all.push_back(parameter);
    const double norm = torch::nn::utils::clip_grad_norm_(std::as_const(all), 1e9);
    EXPECT_NEAR(clip_grad_norm_({a, b}, 1e9), norm, 1e-12 * norm);
    auto own = a.local_parameters();
    for (auto& parameter : b.local_parameters()) own.push_back(parameter);
    EXPECT_NEAR(clip_grad_norm_(own, 1e9), norm, 1e-12 * norm);
  });
}

TEST(ClipGrad, WithoutGradientsTheNormIsZero) {
  on_ranks(2, [] {
    FarModel own;
    own.model.place();
    EXPECT_EQ(clip_grad_norm_(own.model, 1.0), 0);
    clip_grad_value_(own.model, 1.0);
  });
}

/// As LibTorch's. Ranks that all pass NaN pass the same.
TEST(ClipGrad, ALimitThatIsNoNumberMakesGradientsNoNumbers) {
  on_ranks(2, [] {
    FarModel own;
    auto train = smp::step([&](Tensor x) {
      if (!is_tracing()) own.model.backward(own.model(x).sum());
    });
    train(rows(4));
    EXPECT_GT(clip_grad_norm_(own.model, std::nan("")), 0);
    for (const auto& parameter : own.model.local_parameters()) {
      EXPECT_TRUE(parameter.grad().isnan().all().item<bool>());
    }
  });
}

TEST(ClipGrad, WhatCannotBeIsRefused) {
  on_ranks(2, [] {
    FarModel own;
    auto train = smp::step([&](Tensor x) {
      if (!is_tracing()) own.model.backward(own.model(x).sum() * std::nan(""));
    });
    train(rows(4));
    EXPECT_THAT(refusal<UsageError>([&] { clip_grad_norm_(own.model, 1.0, 2.0, true); }),
                HasSubstr("total norm of order 2"));
    EXPECT_THAT(refusal<UsageError>([&] { clip_grad_norm_(own.model, 1.0 + rank()); }),
                HasSubstr("different options"));
    auto inside = smp::step([&](Tensor x) {
      own.model(x);
      if (!is_tracing()) torch::nn::utils::clip_grad_norm_(own.model.parameters(), 1.0);
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { inside(rows(4)); }), HasSubstr("inside a step"));
    auto stranger = torch::ones({2}).requires_grad_();
    stranger.mutable_grad() = torch::ones({2});
    EXPECT_THAT(refusal<UsageError>([&] { clip_grad_norm_(std::vector<Tensor>{stranger}, 1.0); }),
                HasSubstr("stages 0 and 1"));
  });
}

}  // namespace clip_grad_test
}  // namespace smp
