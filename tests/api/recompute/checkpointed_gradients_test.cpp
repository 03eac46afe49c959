// Gradients of calls that are computed again: those of difference quotients, whatever goes in and
// comes out, and those of calls that are held.
#include <torch/types.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "api/two_ranks.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp {
namespace checkpointed_gradients_test {

using at::Tensor;

// ---- difference quotients ----------------------------------------------------------------------

/// Uses its layer twice, and has a nested part that is marked too.
struct NestedImpl : torch::nn::Module {
  NestedImpl()
      : inner(register_module("inner", nn::Linear(3, 3))),
        outer(register_module("outer", nn::Linear(3, 3))),
        norm(register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({3})))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) {
    auto y = inner(x).tanh();
    y = norm(y + inner(y.sin()));
    return outer(y);
  }
  nn::Linear inner, outer;
  nn::LayerNorm norm;
};
SMP_MODULE(Nested);

/// The loss of a step on `ranks` stages; its gradients, of the batch first.
double loss_of(int ranks, const std::vector<Tensor>& values, std::vector<Tensor>* gradients) {
  double loss = 0;
  Config config;
  config.microbatches = 2;
  config.plan_cache = "off";
  run_local(ranks,
            [&] {
              Nested net;
              {
                const torch::NoGradGuard no_grad;
                const auto parameters = net->parameters();
                for (std::size_t i = 0; i < parameters.size(); ++i) {
                  parameters[i].copy_(values[i + 1]);
                }
              }
              set_activation_checkpointing(net);
              set_activation_checkpointing(net->inner);
              DistributedModel model(net);
              if (ranks > 1) model.set_partition("inner", 1);
              auto x = values[0].clone().requires_grad_();
              auto train = step([&](const Tensor& rows) {
                const auto each = model(rows).pow(3).sum();
                if (gradients != nullptr) model.backward(each);
                return each;
              });
              const double own = train(x).reduce_mean().item<double>();
              if (rank() == 0) loss = own;
              if (gradients == nullptr) return;
              gradients->resize(values.size());
              if (rank() == 0) (*gradients)[0] = x.grad().clone();
              for (std::size_t i = 0; i + 1 < values.size(); ++i) {
                const auto& parameter = net->parameters()[i];
                if (model.owns(parameter)) (*gradients)[i + 1] = parameter.grad().clone();
              }
            },
            config, {.seed = 1});
  return loss;
}

TEST(CheckpointedGradients, AreDifferenceQuotients) {
  torch::manual_seed(2);
  std::vector<Tensor> values{torch::randn({4, 3}, torch::kDouble)};
  for (const auto& parameter : Nested()->parameters()) {
    values.push_back(torch::randn_like(parameter) * 0.5);
  }
  for (const int ranks : {1, 2}) {
    std::vector<Tensor> gradients;
    loss_of(ranks, values, &gradients);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto flat = gradients[i].flatten();
      for (std::int64_t j = 0; j < flat.numel(); ++j) {
        constexpr double kStep = 1e-5;
        const auto at = [&](double by) {
          auto moved = values;
          moved[i] = values[i].clone();
          moved[i].view(-1)[j] += by;
          return loss_of(ranks, moved, nullptr);
        };
        // The loss of a step is the mean over its microbatches.
        const double quotient = (at(kStep) - at(-kStep)) / (2 * kStep);
        EXPECT_NEAR(flat[j].item<double>(), quotient, 1e-6 * (1 + std::abs(quotient)))
            << "value " << i << ", element " << j << ", " << ranks << " ranks";
      }
    }
  }
}

// ---- what goes in and comes out ----------------------------------------------------------------

/// Integers, nothing, lists, what needs no gradient; a view of an argument, what nobody uses, the
/// same tensor twice.
struct MixedImpl : torch::nn::Module {
  MixedImpl() : table(register_module("table", nn::Embedding(5, 3))) { to(torch::kDouble); }
  std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Tensor& ids, const Tensor& x,
                                                     const Tensor& nothing,
                                                     const std::vector<Tensor>& more) {
    auto y = table(ids) * x;
    if (nothing.defined()) y = y + nothing;
    for (const auto& each : more) y = y + each.exp();
    auto unused = y.cos();
    return {y, x.narrow(1, 0, 1), unused, y};
  }
  nn::Embedding table;
};
SMP_MODULE(Mixed);

std::vector<Tensor> mixed_gradients(bool again, bool needs_gradient) {
  torch::manual_seed(3);
  Mixed net;
  if (again) set_activation_checkpointing(net);
  const auto ids = torch::tensor({1, 4, 1, 0});
  auto x = torch::randn({4, 3}, torch::kDouble), extra = torch::randn({4, 3}, torch::kDouble);
  if (needs_gradient) x.requires_grad_();
  const auto [y, view, unused, same] = net(ids, x, Tensor(), std::vector<Tensor>{extra});
  auto loss = y.sin().sum() + (view * 2).sum() + same.square().sum();
  loss.backward();
  return {loss.detach(), net->table->weight.grad(), x.grad()};
}

TEST(CheckpointedGradients, AreThoseOfHeldCallsWhateverGoesInAndComesOut) {
  for (const bool needs_gradient : {true, false}) {  // a first block's weights have theirs
    const auto held = mixed_gradients(false, needs_gradient);
    const auto again = mixed_gradients(true, needs_gradient);
    for (std::size_t i = 0; i < held.size(); ++i) {
      ASSERT_EQ(held[i].defined(), again[i].defined()) << i;
      if (held[i].defined()) {
        EXPECT_TRUE(held[i].equal(again[i])) << i;
      }
    }
    EXPECT_TRUE(again[1].defined());
  }
}

}  // namespace checkpointed_gradients_test
}  // namespace smp
