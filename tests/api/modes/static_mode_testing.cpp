// static_mode_testing.cpp: see the header.
#include "api/modes/static_mode_testing.h"

#include <torch/optim/sgd.h>

#include <numeric>
#include <random>

#include "api/far_model.h"

namespace smp {
namespace static_mode_test {
namespace {

/// The same numbers for a step's microbatch in every training; kMicrobatches: for the step itself.
class Dice {
 public:
  Dice(int step, int microbatch) : random_(static_cast<unsigned>(1 + 64 * step + microbatch)) {
    random_.discard(3);
  }
  std::size_t below(unsigned n) { return static_cast<std::size_t>(random_() / 7 % n); }
  std::int64_t up_to(std::int64_t n) {
    return 1 + static_cast<std::int64_t>(below(static_cast<unsigned>(n)));
  }

 private:
  std::minstd_rand random_;
};

Tensor of_the_other_type(const Tensor& x) {
  return x.to(x.scalar_type() == torch::kDouble ? torch::kFloat : torch::kDouble);
}

/// Whom it calls, how often, with how many rows of which dtype, and what it uses: another one in
/// every step and microbatch. Rows and dtype are the same in all steps that are recorded, so that
/// others come as a surprise.
Tensor way_by_chance(NetImpl& net, Tensor x, int step, int microbatch) {
  Dice dice(step, microbatch);
  const bool surprises = step >= kRecorded;
  if (surprises && dice.below(4) == 0) x = x.narrow(0, 0, dice.up_to(x.size(0)));
  if (surprises && dice.below(4) == 0) x = of_the_other_type(x);
  Tensor aside = x;
  for (auto calls = dice.below(6); calls > 0; --calls) {
    switch (dice.below(5)) {
      case 0:
        aside = net.pieces[dice.below(kPieces)](aside);
        break;
      case 1:
        x = x + aside;
        break;
      case 2:
        net.pieces[dice.below(kPieces)](x);
        break;  // nobody uses what it returns
      case 3:
        if (surprises) aside = of_the_other_type(aside);
        break;
      default:
        x = net.pieces[dice.below(kPieces)](x);
    }
  }
  return x + 0 * net.pieces[0]->linear->weight.sum();
}

/// Every other one is not like those of the steps that are recorded.
Tensor batch_by_chance(int step) {
  Dice dice(step, kMicrobatches);
  if (step < kRecorded || dice.below(2) == 0) return plain_batch(step);
  const auto batch = rows(kMicrobatches * dice.up_to(3));
  return dice.below(2) == 0 ? batch : of_the_other_type(batch);
}

}  // namespace

Tensor plain_batch(int) { return rows(kMicrobatches); }

const Program kStraight{[](NetImpl& net, Tensor x, int, int) {
  for (auto& piece : net.pieces) x = piece(x);
  return x;
}};

const Program kByChance{way_by_chance, batch_by_chance};

std::uint64_t Trained::control_messages_from(int first) const {
  return std::accumulate(control_messages.begin() + first, control_messages.end(),
                         std::uint64_t{0});
}

Trained train(Mode mode, int ranks, int steps, const Program& program, std::uint64_t seed,
              const char* pipeline) {
  Trained trained;
  trained.control_messages.resize(static_cast<std::size_t>(steps));
  const auto rank_main = [&] {
    torch::manual_seed(5);
    Net net;
    DistributedModel model(net);
    model.set_partition("", 0);
    for (int i = 0; i < kPieces; ++i) model.set_partition("p" + std::to_string(i), i % ranks);
    DistributedOptimizer optimizer(
        model, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5)));
    int step = 0;
    auto run = smp::step([&](const Tensor& x, const Tensor& number) {
      auto loss = program.way(*net, x, step, number[0].item<int>()).square().mean();
      model.backward(loss);
      return loss.detach().to(torch::kDouble);
    });
    for (; step < steps; ++step) {
      const auto before = control_messages();
      optimizer.zero_grad();
      const auto batch = program.batch(step);
      const auto numbers =
          torch::arange(kMicrobatches).repeat_interleave(batch.size(0) / kMicrobatches);
      const auto loss = run(batch, numbers).reduce_mean();
      if (rank() == 0) trained.losses.push_back(loss.item<double>());
      optimizer.step();
      trained.control_messages[static_cast<std::size_t>(step)] += control_messages() - before;
    }
    trained.replayed += replayed();
    for (const auto& [name, parameter] : model.local_named_parameters()) {
      trained.parameters[name] = parameter.detach().clone();
    }
  };
  auto config = config_of(mode, kMicrobatches);
  config.pipeline = pipeline;
  run_local(ranks, rank_main, config, {.seed = seed});
  return trained;
}

void expect_same_bits(const Trained& one, const Trained& other) {
  EXPECT_EQ(one.losses, other.losses);
  ASSERT_EQ(one.parameters.size(), 2u * kPieces);
  for (const auto& [name, parameter] : one.parameters) {
    EXPECT_TRUE(at::equal(parameter, other.parameters.at(name))) << name;
  }
}

std::uint64_t control_messages() { return Rank::current().server().core().port.control_messages(); }

std::vector<std::uint64_t> messages_of_evaluations(Mode mode, const char* pipeline) {
  constexpr int kSteps = kRecorded + 3;
  std::vector<std::uint64_t> messages(kSteps);
  const auto rank_main = [&] {
    torch::manual_seed(5);
    Net net;
    DistributedModel model(net);
    model.set_partition("", 0);
    for (int i = 0; i < kPieces; ++i) model.set_partition("p" + std::to_string(i), i % 3);
    net->eval();
    auto run = smp::step([&](const Tensor& x) {
      const at::NoGradGuard none;
      return net->pieces[2](net->pieces[1](x)).sum();
    });
    std::vector<double> sums;
    for (auto& of_step : messages) {
      const auto before = control_messages();
      sums.push_back(run(rows(kMicrobatches)).reduce_mean().item<double>());
      of_step += control_messages() - before;
    }
    EXPECT_THAT(sums, testing::Each(testing::Eq(sums[0])));
    EXPECT_EQ(replayed(), rank() == 0 ? 3u : 0u);
  };
  auto config = config_of(mode, kMicrobatches);
  config.pipeline = pipeline;
  run_local(3, rank_main, config, {.seed = 1});
  return {messages.begin() + kRecorded, messages.end()};
}

}  // namespace static_mode_test
}  // namespace smp
