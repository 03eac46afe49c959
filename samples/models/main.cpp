// samples/models/main.cpp: trains a model in one process and over the ranks, and compares.
//
//     mpirun -n 3 models --model unet
#include <smp/smp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpt.h"
#include "llama.h"
#include "recommender.h"
#include "unet.h"

namespace models {
namespace {

constexpr int kSteps = 20;
constexpr int kComparedSteps = 5;
constexpr int64_t kRows = 32;
constexpr int kMicrobatches = 8;
/// Float32 sums that a cut re-associates, over a few steps of momentum.
constexpr double kTolerance = 1e-4;

torch::optim::SGD make_optimizer(const std::vector<Tensor>& parameters, double learning_rate) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(learning_rate).momentum(0.9));
}

/// Losses of the first steps in plain LibTorch: microbatches one after the other.
template <class Recipe>
std::vector<double> train_in_one_process(const Recipe& recipe) {
  torch::manual_seed(1);
  auto net = recipe.make();
  auto optimizer = make_optimizer(net->parameters(), Recipe::kLearningRate);
  std::vector<double> losses;
  for (int step = 0; step < kComparedSteps; ++step) {
    const std::vector<Tensor> batch = recipe.draw();
    optimizer.zero_grad();
    losses.push_back(0);
    for (int64_t i = 0; i < kMicrobatches; ++i) {
      std::vector<Tensor> slice;
      for (const auto& tensor : batch) slice.push_back(tensor.tensor_split(kMicrobatches)[i]);
      const auto loss = recipe.loss(net, slice) / kMicrobatches;
      loss.backward();
      losses.back() += loss.template item<double>();
    }
    optimizer.step();
  }
  return losses;
}

/// The same over the ranks, and on.
template <class Recipe>
std::vector<double> train_over_ranks(const Recipe& recipe) {
  torch::manual_seed(1);
  auto net = recipe.make();
  smp::DistributedModel model(net);
  smp::DistributedOptimizer optimizer(model,
                                      make_optimizer(net->parameters(), Recipe::kLearningRate));
  auto run = smp::step([&](const std::vector<Tensor>& batch) {
    const auto loss = recipe.loss(model, batch);
    model.backward(loss);
    return loss;
  });
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<Tensor> batch = recipe.draw();
    optimizer.zero_grad();
    losses.push_back(run(batch).reduce_mean().template item<double>());
    optimizer.step();
    if (step == 0 && smp::rank() == 0) std::printf("%s", model.plan().table().c_str());
  }
  return losses;
}

template <class Recipe>
void compare(const Recipe& recipe) {
  std::vector<double> alone;
  if (smp::rank() == 0 && !smp::is_planning()) alone = train_in_one_process(recipe);
  alone = smp::broadcast(alone);
  const auto together = train_over_ranks(recipe);
  double difference = 0;
  for (int step = 0; step < kComparedSteps; ++step) {
    const double relative = std::abs(together[step] - alone[step]) / std::abs(alone[step]);
    difference = std::max(difference, relative);
  }
  if (smp::rank() == 0) {
    std::printf("loss %.4f at first, %.4f after %d steps; %d steps in one process differ by %.1e\n",
                together.front(), together.back(), kSteps, kComparedSteps, difference);
  }
  if (!(difference < kTolerance)) throw std::runtime_error("the two trainings came apart");
}

struct GptRecipe {
  static constexpr double kLearningRate = 0.1;
  static Gpt make() { return Gpt(); }
  static std::vector<Tensor> draw() { return {draw_sequences(kRows)}; }
  template <class Net>
  static Tensor loss(Net& net, const std::vector<Tensor>& batch) {
    return net(batch[0]);
  }
};

struct LlamaRecipe {
  static constexpr double kLearningRate = 0.1;
  static Llama make() { return Llama(); }
  static std::vector<Tensor> draw() { return {draw_sequences(kRows)}; }
  template <class Net>
  static Tensor loss(Net& net, const std::vector<Tensor>& batch) {
    return net(batch[0]);
  }
};

struct UNetRecipe {
  static constexpr double kLearningRate = 0.1;
  static UNet make() { return UNet(); }
  static std::vector<Tensor> draw() {
    auto [images, masks] = draw_rectangles(kRows);
    return {images, masks};
  }
  template <class Net>
  static Tensor loss(Net& net, const std::vector<Tensor>& batch) {
    return torch::binary_cross_entropy_with_logits(net(batch[0]), batch[1]);
  }
};

struct RecommenderRecipe {
  static constexpr double kLearningRate = 0.1;
  static Recommender make() { return Recommender(); }
  static std::vector<Tensor> draw() {
    const auto visits = draw_visits(kRows);
    return {visits.user, visits.item, visits.clicked, visits.bought};
  }
  template <class Net>
  static Tensor loss(Net& net, const std::vector<Tensor>& batch) {
    const auto [click, purchase] = net(batch[0], batch[1]);
    return torch::binary_cross_entropy_with_logits(click, batch[2]) +
           torch::binary_cross_entropy_with_logits(purchase, batch[3]);
  }
};

void run(int argc, char** argv) {
  auto session = smp::init(argc, argv, {.microbatches = kMicrobatches});
  const std::string name = argc == 3 && std::string(argv[1]) == "--model" ? argv[2] : "";
  if (name == "gpt") {
    compare(GptRecipe());
  } else if (name == "llama") {
    compare(LlamaRecipe());
  } else if (name == "unet") {
    compare(UNetRecipe());
  } else if (name == "recommender") {
    compare(RecommenderRecipe());
  } else {
    throw std::invalid_argument("usage: models --model gpt|llama|unet|recommender");
  }
}

}  // namespace
}  // namespace models

int main(int argc, char** argv) {
  try {
    models::run(argc, argv);
  } catch (const std::exception& error) {
    smp::report_error(error);
    return 1;
  }
  return 0;
}
