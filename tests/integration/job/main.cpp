// A job for jobs_test.py: trains a small net over all ranks and misbehaves as told.
//
//     integration_job train STEPS          trains
//     integration_job leave STEPS RANK     RANK returns from main after STEPS steps; others go on
//     integration_job throw STEPS RANK     RANK throws after STEPS steps; others go on
//     integration_job sleep SECONDS RANK   a module on RANK sleeps in microbatch 1 of the second
//     step integration_job plan FILE            writes the plan
#include <smp/smp.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <thread>

namespace {

constexpr int kLayers = 4;
constexpr int kManySteps = 1'000'000;

double seconds_to_sleep = 0;

struct LayerImpl : torch::nn::Module {
  LayerImpl() : linear(register_module("linear", smp::nn::Linear(8, 8))) {}
  at::Tensor forward(const at::Tensor& x) {
    if (seconds_to_sleep > 0 && smp::current_microbatch() == 1) {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds_to_sleep));
      seconds_to_sleep = 0;
    }
    return x + linear(x).tanh();
  }
  smp::nn::Linear linear;
};
SMP_MODULE(Layer);

smp::nn::Sequential make_net() {
  torch::manual_seed(1);
  smp::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) net->push_back(Layer());
  return net;
}

/// What one rank is told to do.
struct Orders {
  std::string action;
  double amount = 0;  // steps or seconds
  int rank = -1;
  bool are_mine() const { return smp::rank() == rank; }
};

int train(const Orders& orders) {
  smp::DistributedModel model(make_net());
  for (int i = 0; i < kLayers; ++i) model.set_partition(std::to_string(i), i % smp::size());
  smp::DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 1e-3));
  auto step = smp::step([&](at::Tensor x) {
    auto loss = model(x).square().mean();
    model.backward(loss);
    return loss;
  });
  const bool counts = orders.action != "sleep";
  const int last = orders.action == "train" ? static_cast<int>(orders.amount) : kManySteps;
  for (int number = 1; number <= (counts ? last : 3); ++number) {
    if (!counts && number == 2 && orders.are_mine()) seconds_to_sleep = orders.amount;
    optimizer.zero_grad();
    step(torch::ones({8, 8}));
    optimizer.step();
    if (smp::rank() == 0 && number < 10) std::cout << "step " + std::to_string(number) << std::endl;
    if (number < orders.amount || !orders.are_mine()) continue;
    if (orders.action == "leave") return 0;
    if (orders.action == "throw") throw std::runtime_error("the disk is full");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  auto session = smp::init(argc, argv, {.microbatches = 2});
  // One write, so that lines of several ranks do not mix.
  std::cout << "rank " + std::to_string(smp::rank()) + " pid " + std::to_string(::getpid()) + "\n"
            << std::flush;
  Orders orders{argc > 1 ? argv[1] : "train", 3};
  if (orders.action == "plan") {
    smp::DistributedModel model(make_net());
    model.place();
    if (smp::rank() == 0) model.plan().write(argv[2]);
    return 0;
  }
  if (argc > 2) orders.amount = std::stod(argv[2]);
  if (argc > 3) orders.rank = std::stoi(argv[3]);
  return train(orders);
}
