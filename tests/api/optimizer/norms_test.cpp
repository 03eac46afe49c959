// smp::grad_norm, parameter_norm and grad_overflow against torch::nn::utils in one process.
#include "smp/norms.h"

#include <torch/nn/utils/clip_grad.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "api/chain_model.h"

namespace smp {
namespace norms_test {

using at::Tensor;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A chain over all ranks, after a step.
struct Trained {
  Trained() : net(make_chain()), model(net) {
    model.set_partition("", 0);
    model.set_partition("b", 1 % size());
    model.set_partition("c", size() - 1);
    auto train = smp::step([this](Tensor x) {
      if (!is_tracing()) model.backward(model(x).square().sum());
    });
    train(rows(4));
  }
  Chain net;
  DistributedModel<Chain> model;
};

Chain plain_trained() {
  auto net = make_chain();
  for (const auto& x : rows(4).chunk(2)) (net(x).square().sum() / 2).backward();
  return net;
}

TEST(Norms, AreThoseOfOneProcess) {
  const auto plain = plain_trained();
  for (const double type : {2.0, 1.0, 3.5, kInfinity}) {
    const auto all = plain->parameters();
    const double of_gradients = torch::nn::utils::clip_grad_norm_(std::as_const(all), 1e9, type);
    std::vector<Tensor> flat;
    for (const auto& parameter : all) flat.push_back(parameter.detach().flatten());
    const double of_values = at::cat(flat).norm(type).item<double>();
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << "norm " << type << ", " << ranks << " ranks");
      on_ranks(ranks, [&] {
        Trained own;
        const auto before = own.model.local_parameters().empty()
                                ? Tensor()
                                : own.model.local_parameters()[0].grad().clone();
        EXPECT_NEAR(grad_norm(own.model, type), of_gradients, 1e-12 * of_gradients);
        EXPECT_NEAR(grad_norm({own.model}, type), of_gradients, 1e-12 * of_gradients);
        EXPECT_NEAR(parameter_norm(own.model, type), of_values, 1e-12 * of_values);
        EXPECT_NEAR(parameter_norm({own.model}, type), of_values, 1e-12 * of_values);
        if (before.defined()) {
          EXPECT_TRUE(at::equal(own.model.local_parameters()[0].grad(), before));
        }
      });
    }
  }
}

/// Integers have no norm; complex numbers have.
TEST(Norms, OfComplexParametersCount) {
  on_ranks(2, [&] {
    Chain net = make_chain();
    const double without = [&] {
      std::vector<Tensor> flat;
      for (const auto& parameter : net->parameters()) flat.push_back(parameter.detach().flatten());
      return at::cat(flat).norm().item<double>();
    }();
    const auto turn =
        at::complex(torch::full({2}, 3.0, torch::kDouble), torch::full({2}, 4.0, torch::kDouble));
    net->c->register_parameter("turn", turn);
    net->c->register_parameter("count", torch::full({2}, 7), /*requires_grad=*/false);
    DistributedModel model(net);
    model.set_partition("", 0);
    model.set_partition("c", 1);
    auto train = smp::step([&](Tensor x) {
      if (!is_tracing()) model.backward(model(x).square().sum());
    });
    train(rows(4));
    EXPECT_NEAR(parameter_norm(model), std::hypot(without, 5 * std::sqrt(2.0)), 1e-12 * without);
    EXPECT_DOUBLE_EQ(parameter_norm(model, kInfinity), 5);
  });
}

TEST(Norms, OfOwnPartsAreOfAllOfThem) {
  const auto plain = plain_trained();
  const auto all = plain->parameters();
  const double norm = torch::nn::utils::clip_grad_norm_(std::as_const(all), 1e9);
  on_ranks(3, [&] {
    Trained own;
    EXPECT_NEAR(grad_norm(own.model.local_parameters()), norm, 1e-12 * norm);
    EXPECT_NEAR(parameter_norm(own.model.local_parameters()), parameter_norm(own.model), 1e-12);
  });
}

/// `value` in one gradient of the last rank.
void expect_overflow(double value, bool expected) {
  SCOPED_TRACE(value);
  for (const int ranks : {1, 3}) {
    on_ranks(ranks, [&] {
      Trained own;
      if (rank() == size() - 1) {
        own.model.local_parameters()[0].mutable_grad().flatten()[0].fill_(value);
      }
      EXPECT_EQ(grad_overflow(own.model), expected);
      EXPECT_EQ(grad_overflow({own.model}), expected);
    });
  }
}

TEST(Norms, AnOverflowOnOneRankIsKnownOnAll) {
  expect_overflow(kInfinity, true);
  expect_overflow(-kInfinity, true);
  expect_overflow(std::nan(""), true);
  expect_overflow(1, false);
  expect_overflow(1e200, false);  // whose square is infinite
}

/// Or the others would wait for it.
TEST(Norms, AreRefusedOnAllStagesIfOnOne) {
  Config config;
  config.pipeline_parallel_degree = 2;
  config.microbatches = 2;
  run_local(
      4,
      [] {
        auto net = make_chain();
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("b", 1);
        model.place();
        std::vector<Tensor> all = model.parameters();
        auto& stranger = all.emplace_back(torch::ones({2}).requires_grad_());
        if (pp_rank() == 0) stranger.mutable_grad() = torch::ones({2});
        for (const auto& norm : std::vector<std::function<void()>>{
                 [&] { grad_norm(all); }, [&] { grad_overflow(all); },
                 [&] { clip_grad_norm_(all, 1); }, [&] { parameter_norm(all); }}) {
          EXPECT_THAT(refusal<UsageError>(norm), HasSubstr("each of 2 replicas has its own"));
        }
      },
      config);
}

/// In its own type the sum of squares would be infinite, and that of 10,000 ones wrong.
TEST(Norms, OfNarrowTypesAreSummedInFloat) {
  for (const auto type : {torch::kHalf, torch::kBFloat16}) {
    auto tensor = torch::full({10'000}, 300, type).requires_grad_();
    tensor.mutable_grad() = torch::full({10'000}, 300, type);
    const std::vector<Tensor> all{tensor};
    EXPECT_NEAR(grad_norm(all), 30'000, 1);
    EXPECT_NEAR(parameter_norm(all), 30'000, 1);
    EXPECT_FALSE(grad_overflow(all));
  }
}

TEST(Norms, WithoutGradientsAreZero) {
  on_ranks(2, [] {
    FarModel own;
    own.model.place();
    EXPECT_EQ(grad_norm(own.model), 0);
    EXPECT_FALSE(grad_overflow(own.model));
  });
}

TEST(Norms, ThatCannotBeAreRefused) {
  on_ranks(2, [] {
    FarModel own;
    EXPECT_THAT(refusal<UsageError>([&] { parameter_norm(own.model); }),
                HasSubstr("smp::parameter_norm before a model was placed"));
    own.model.place();
    EXPECT_THAT(refusal<UsageError>([&] { parameter_norm(own.model, 1.0 + rank()); }),
                HasSubstr("different options"));
    const std::vector<Tensor> stranger{torch::ones({2})};
    EXPECT_THAT(refusal<UsageError>([&] { parameter_norm(stranger); }),
                HasSubstr("stages 0 and 1"));
    auto inside = smp::step([&](Tensor x) {
      own.model(x);
      if (!is_tracing()) parameter_norm(own.model);
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { inside(rows(4)); }), HasSubstr("inside a step"));
  });
}

}  // namespace norms_test
}  // namespace smp
