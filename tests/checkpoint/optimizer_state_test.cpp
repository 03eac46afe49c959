// Training that is saved on some number of ranks goes on, on another, as plain LibTorch's would.
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/two_ranks.h"
#include "checkpoint/model_state_testing.h"

namespace smp::model_state {
namespace optimizer_state_test {

using testing::HasSubstr;
using testing::Not;

Tensor batch(int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
  return torch::randn({4, 6}, generator, torch::kDouble);
}
Tensor loss_of(const Tensor& output) { return output.square().mean(); }

/// Two groups, so that options of each are put back.
template <class Optimizer, class Options>
Optimizer make_optimizer(std::vector<Tensor> parameters, const Options& options) {
  std::vector<Tensor> some(parameters.begin(), parameters.begin() + 3);
  parameters.erase(parameters.begin(), parameters.begin() + 3);
  auto slow = std::make_unique<Options>(options);
  slow->set_lr(options.get_lr() / 3);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(some, std::move(slow));
  groups.emplace_back(parameters, std::make_unique<Options>(options));
  return Optimizer(groups, options);
}

void decay(std::vector<torch::optim::OptimizerParamGroup>& groups) {
  for (auto& group : groups) group.options().set_lr(group.options().get_lr() * 0.9);
}

template <class Optimizer, class Options>
StateDict train_plain(const Options& options, int steps) {
  auto net = make_net();
  std::vector<Tensor> unique;
  for (const auto& parameter : net->parameters()) {
    if (std::none_of(unique.begin(), unique.end(), [&](auto& t) { return t.is_same(parameter); })) {
      unique.push_back(parameter);
    }
  }
  auto optimizer = make_optimizer<Optimizer>(unique, options);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (const auto& part : batch(step).tensor_split(2)) {
      (loss_of(net->forward(part)) * 0.5).backward();
    }
    optimizer.step();
    decay(optimizer.param_groups());
  }
  return state_dict(*net);
}

struct Saved {
  StateDict model;
  StateDict optimizer;
};

/// Steps `begin` to `end` on `ranks` ranks, from what was saved if anything was.
template <class Optimizer, class Options>
Saved train_ours(const Options& options, int ranks, int begin, int end, const Saved& from) {
  Saved saved;
  on_ranks(ranks, [&] {
    DistributedModel model(make_net(begin == 0 ? kSeed : 99));
    spread(model, begin);
    DistributedOptimizer optimizer(model, make_optimizer<Optimizer>(model.parameters(), options));
    auto run = step([&](const Tensor& x) {
      auto loss = loss_of(model(x));
      model.backward(loss);
      return loss;
    });
    if (begin > 0) {
      model.load_state_dict(rank() == 0 ? from.model : StateDict());
      if (begin % 2 == 0) model.place();
      for (auto& group : optimizer.param_groups()) group.options().set_lr(123);
      load_optimizer_state_dict(model, optimizer, rank() == 0 ? from.optimizer : StateDict());
    }
    for (int step = begin; step < end; ++step) {
      optimizer.zero_grad();
      run(batch(step));
      optimizer.step();
      decay(optimizer.param_groups());
    }
    auto model_dict = model.state_dict();
    auto optimizer_dict = optimizer_state_dict(model, optimizer);
    if (rank() == 0) saved = {std::move(model_dict), std::move(optimizer_dict)};
  });
  return saved;
}

template <class Optimizer, class Options>
void expect_training_goes_on(const Options& options) {
  const auto expected = train_plain<Optimizer>(options, 6);
  for (const auto& [before, after, save_at] :
       std::vector<std::array<int, 3>>{{1, 4, 3}, {3, 2, 4}, {4, 1, 2}}) {
    SCOPED_TRACE(testing::Message() << before << " ranks, then " << after);
    auto saved = train_ours<Optimizer>(options, before, 0, save_at, {});
    const auto path = testing::TempDir() + "optimizer." + std::to_string(getpid());
    save_safetensors(saved.optimizer, path);
    saved.optimizer = load_safetensors(path);
    std::filesystem::remove(path);
    const auto ours = train_ours<Optimizer>(options, after, save_at, 6, saved).model;
    ASSERT_EQ(ours.names(), expected.names());
    for (const auto& [name, tensor] : expected) {
      EXPECT_LE((ours.at(name) - tensor).abs().max().template item<double>(), 1e-12) << name;
    }
  }
}

TEST(OptimizerState, OfSgdWithMomentum) {
  expect_training_goes_on<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}
TEST(OptimizerState, OfAdam) {
  expect_training_goes_on<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
}
TEST(OptimizerState, OfAdamW) {
  expect_training_goes_on<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
}
TEST(OptimizerState, OfAdagrad) {
  expect_training_goes_on<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1).lr_decay(0.1));
}
TEST(OptimizerState, OfRmsprop) {
  expect_training_goes_on<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
}

TEST(OptimizerState, HasNamesAndIsRefusedByAnother) {
  const auto saved = train_ours<torch::optim::Adam>(torch::optim::AdamOptions(0.01), 2, 0, 1, {});
  EXPECT_EQ(saved.optimizer.at("optimizer.Adam").item<std::int64_t>(), 2);
  EXPECT_EQ(saved.optimizer.at("state.blocks.1.linear.weight.step").item<std::int64_t>(), 1);
  EXPECT_EQ(saved.optimizer.at("state.table.weight.exp_avg").sizes(), (c10::IntArrayRef{6, 4}));
  EXPECT_NEAR(saved.optimizer.at("param_groups.1.lr").item<double>(), 0.009, 1e-15);
  EXPECT_FALSE(saved.optimizer.contains("state.head.frozen.step"));
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    spread(model);
    const torch::optim::AdamOptions options(0.01);
    DistributedOptimizer adamw(model, torch::optim::AdamW(model.parameters(), 0.01));
    EXPECT_THAT(refusal([&] { load_optimizer_state_dict(model, adamw, saved.optimizer); }),
                HasSubstr("no \"optimizer.AdamW\""));
    DistributedOptimizer one(model, torch::optim::Adam(model.parameters(), 0.01));
    EXPECT_THAT(refusal([&] { load_optimizer_state_dict(model, one, saved.optimizer); }),
                HasSubstr("the dict has 2 groups of parameters, the optimizer 1"));
    DistributedOptimizer two(model,
                             make_optimizer<torch::optim::Adam>(model.parameters(), options));
    auto odd = saved.optimizer;
    odd.insert("state.nobody.exp_avg", torch::ones({1}));
    odd.erase("state.table.weight.exp_avg");
    odd.insert("state.table.weight.exp_avg", torch::ones({1}));
    odd.erase("state.head.bias.exp_avg_sq");
    const auto text = refusal([&] { load_optimizer_state_dict(model, two, odd); });
    EXPECT_THAT(text, HasSubstr("unexpected: state.nobody.exp_avg"));
    EXPECT_THAT(text, HasSubstr("missing: state.head.bias.exp_avg_sq"));
    EXPECT_THAT(text, Not(HasSubstr("max_exp_avg_sq"))) << "only with amsgrad";
    EXPECT_THAT(text,
                HasSubstr("shape of state.table.weight.exp_avg: [1], but it must have [6, 4]"));
    load_optimizer_state_dict(model, two, saved.optimizer);
  });
}

/// A load gives their state to all ranks, of which one goes on to step them.
TEST(OptimizerState, OfATensorOfNoModelIsThatOfWhoStepsIt) {
  on_ranks(2, [] {
    DistributedModel model(make_net());
    spread(model);
    const auto scale = torch::ones({1}, torch::kDouble).requires_grad_();
    auto parameters = model.parameters();
    parameters.push_back(scale);
    DistributedOptimizer optimizer(model, torch::optim::Adam(parameters, 0.01));
    auto run = step([&](const Tensor& x) { model.backward(loss_of(model(x)) * scale); });
    const auto train = [&](int step) {
      optimizer.zero_grad();
      run(batch(step));
      optimizer.step();
      return optimizer_state_dict(model, optimizer, kAllPpRanks);
    };
    load_optimizer_state_dict(model, optimizer, train(0));
    const auto state = train(1);
    int found = 0;
    for (const auto& [name, tensor] : state) {
      if (!name.starts_with("state.param_groups.") || !name.ends_with(".step")) continue;
      EXPECT_EQ(tensor.item<std::int64_t>(), 2) << name;
      ++found;
    }
    EXPECT_EQ(found, 1);
  });
}

}  // namespace optimizer_state_test
}  // namespace smp::model_state
