// t5 STEPS: trains a small T5 with dropout over all ranks, and prints what each has computed.
#include <smp/smp.h>
#include <torch/optim/adam.h>

#include <cstdio>
#include <string>
#include <vector>

#include "../results.h"
#include "t5/t5.h"

namespace {

constexpr int kRows = 16;
constexpr int kTokens = 48;

/// Activations of a microbatch are large enough to be lent, and to travel apart from their message.
t5::T5Config config() {
  t5::T5Config config;
  config.vocab_size = 96;
  config.d_model = 128;
  config.d_kv = 16;
  config.d_ff = 256;
  config.num_layers = config.num_decoder_layers = 2;
  config.num_heads = 4;
  config.dropout_rate = 0.1;
  return config;
}

/// The same wherever the ranks are, as plans need not be.
void place(smp::DistributedModelBase& model) {
  const int stages = smp::pp_size();
  model.set_partition("", 0);
  model.set_partition("encoder.block.1", 1 % stages);
  model.set_partition("decoder.block.0", 2 % stages);
  model.set_partition("decoder.block.1", 3 % stages);
}

/// Tokens above the special ones; rows and steps differ.
at::Tensor tokens(int number) {
  const auto places = torch::arange(kRows * kTokens).reshape({kRows, kTokens});
  return (places * (31 + number) + places.square() % 89) % 90 + 3;
}

void train(int steps) {
  torch::manual_seed(7);
  t5::T5 net(config());
  smp::DistributedModel model(net);
  place(model);
  smp::DistributedOptimizer optimizer(model, torch::optim::Adam(net->parameters(), 1e-3));
  auto step = smp::step([&](const at::Tensor& ids, const at::Tensor& labels) {
    const auto logits = model(ids, labels);
    const auto loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels.flatten());
    model.backward(loss);
    return loss.detach();
  });
  std::vector<double> losses;
  for (int number = 1; number <= steps; ++number) {
    optimizer.zero_grad();
    const auto loss = step(tokens(number), tokens(number).flip(1));
    optimizer.step();
    losses.push_back(loss.reduce_mean().item<double>());
  }
  std::fputs((smp::results(losses, model) + "\n").c_str(), stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const auto session = smp::init(argc, argv, {.microbatches = 4});
  train(argc > 1 ? std::stoi(argv[1]) : 3);
}
