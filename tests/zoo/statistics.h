// zoo/statistics.h: layers with running statistics, and layers that draw random numbers.
#pragma once

#include "zoo/zoo.h"

namespace smp::zoo {

struct BatchNormsImpl : ModelImpl {
  BatchNormsImpl()
      : first(register_module("first", nn::Linear(8, 8))),
        norm(register_module("norm", nn::BatchNorm1d(8))),
        last(register_module("last", nn::Linear(8, 8))),
        average(register_module(
            "average", nn::BatchNorm1d(nn::BatchNorm1dOptions(8).momentum(std::nullopt)))) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto x = norm(first(in[0]));
    x = average(last(torch::tanh(norm(x))));
    return {(x * in[0]).pow(2).mean()};
  }
  nn::Linear first;
  nn::BatchNorm1d norm;
  nn::Linear last;
  nn::BatchNorm1d average;
};

struct NoisyImpl : torch::nn::Module {
  NoisyImpl()
      : linear(register_module("linear", nn::Linear(8, 8))),
        dropout(register_module("dropout", nn::Dropout(0.3))) {}
  Tensor forward(const Tensor& x, int times) {
    auto y = x;
    for (int i = 0; i < times; ++i) {
      y = dropout(torch::tanh(linear(y))) + x + 0.01 * torch::randn({3}).sum().to(torch::kDouble);
    }
    return y;
  }
  nn::Linear linear;
  nn::Dropout dropout;
};
SMP_MODULE(Noisy);

struct DropoutsImpl : ModelImpl {
  DropoutsImpl()
      : p(register_module("p", Noisy())),
        q(register_module("q", Noisy())),
        lstm(register_module("lstm", nn::LSTM(nn::LSTMOptions(8, 8).num_layers(2).dropout(0.4)))) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto x = torch::dropout(p(in[0], 2), 0.1, is_training());
    if (x.sum().item<double>() > 0) x = q(x, 1);
    x = p(x, 1);
    auto [output, state] = lstm(x.unsqueeze(0));
    return {(output.squeeze(0) + q(x, 2)).pow(2).mean()};
  }
  Noisy p, q;
  nn::LSTM lstm;
};

inline std::vector<Case> statistics() {
  const auto rows = [](int step) { return std::vector<Tensor>{numbers(step, {16, 8})}; };
  return {
      {"batch norm", makes<BatchNormsImpl>(), rows, {"first", "norm", "last", "average"}},
      {"dropout", makes<DropoutsImpl>(), rows, {"p", "q", "q.dropout", "lstm"}, false, true},
  };
}

}  // namespace smp::zoo
