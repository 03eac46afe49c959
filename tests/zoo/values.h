// zoo/values.h: arguments and results of every kind, integer outputs, inputs without gradient.
#pragma once

#include <map>
#include <optional>
#include <tuple>

#include "zoo/zoo.h"

namespace smp::zoo {

struct Memory {
  Tensor key, value;
  int64_t uses = 0;
  std::string tag;
  std::vector<std::optional<Tensor>> extra;
};

struct RecallImpl : torch::nn::Module {
  RecallImpl()
      : query(register_module("query", nn::Linear(8, 8))),
        key(register_module("key", nn::Linear(8, 8))) {}
  std::tuple<Tensor, Memory> forward(const Tensor& x, const std::optional<Tensor>& mask,
                                     const Memory& memory, bool causal) {
    auto k = key(x);
    auto scores = torch::matmul(query(x), k.t()) / 3.0;
    if (mask) scores = scores + *mask;
    if (causal) scores = scores.tril();
    auto y = torch::matmul(torch::softmax(scores, -1), x);
    return {y, Memory{k, k.detach(), memory.uses + 1, memory.tag + "+", {std::nullopt, y.mean()}}};
  }
  nn::Linear query, key;
};
SMP_MODULE(Recall);

struct CountsImpl : torch::nn::Module {
  CountsImpl() : linear(register_module("linear", nn::Linear(8, 4))) {}
  /// An integer output beside a differentiable one, in a map.
  std::map<std::string, Tensor> forward(const std::vector<Tensor>& inputs) {
    auto logits = linear(inputs.at(0));
    return {{"logits", logits}, {"best", logits.argmax(-1)}};
  }
  nn::Linear linear;
};
SMP_MODULE(Counts);

struct ValuesImpl : ModelImpl {
  ValuesImpl()
      : first(register_module("first", Recall())),
        second(register_module("second", Recall())),
        counts(register_module("counts", Counts())) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto [x, memory] = first(in[0], std::nullopt, Memory{{}, {}, 0, "t", {}}, true);
    auto [y, later] = second(
        x, memory.key.t().matmul(memory.key).mean() * torch::ones({1}, x.options()), memory, false);
    TORCH_CHECK(later.uses == 2 && later.tag == "t++" && later.extra.size() == 2);
    auto result = counts(std::vector<Tensor>{y});
    TORCH_CHECK(result.at("best").scalar_type() == torch::kLong);
    auto picked = result.at("logits").gather(1, result.at("best").unsqueeze(1));
    return {picked.pow(2).mean() + *later.extra[1] * 0.1};
  }
  Recall first, second;
  Counts counts;
};

struct ManyFormsImpl : torch::nn::Module {
  ManyFormsImpl() { weight = register_parameter("weight", torch::randn({8, 8})); }
  Tensor forward(const Tensor& x) { return x.mm(weight); }
  std::pair<Tensor, int> forward(const Tensor& x, int n) { return {x.mm(weight) * n, n + 1}; }
  template <class Scale>
  Tensor scaled(const Tensor& x, Scale scale) {
    return x.mm(weight) * scale;
  }
  Tensor weight;
};
SMP_MODULE(ManyForms, scaled);

/// Overloads, templates, default arguments, a module from LibTorch that returns a tuple.
struct FormsImpl : ModelImpl {
  FormsImpl()
      : forms(register_module("forms", ManyForms())),
        attention(register_module("attention",
                                  nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2)))),
        lstm(register_module("lstm", nn::LSTM(8, 8))) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto [x, n] = forms(in[0], 3);
    TORCH_CHECK(n == 4);
    x = torch::tanh(forms(x)) + forms->scaled(x, 0.5f) * 0.1;
    auto s = x.unsqueeze(1);
    auto [attended, weights] = attention(s, s, s);
    auto [output, state] = lstm(attended);
    return {output.pow(2).mean() + weights.mean() + std::get<1>(state).mean()};
  }
  ManyForms forms;
  nn::MultiheadAttention attention;
  nn::LSTM lstm;
};

inline std::vector<Case> values() {
  const auto rows = [](int step) { return std::vector<Tensor>{numbers(step, {16, 8})}; };
  return {
      {"struct, optional, tuple, map, list, integer output",
       makes<ValuesImpl>(),
       rows,
       {"first", "second", "counts", "first.key", "second.query"}},
      {"overloads, templates, defaults, attention, lstm",
       makes<FormsImpl>(),
       rows,
       {"forms", "attention", "lstm"}},
  };
}

}  // namespace smp::zoo
