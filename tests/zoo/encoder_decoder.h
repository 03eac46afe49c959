// zoo/encoder_decoder.h: a tiny T5, tied and untied, and a two-tower recommender.
#pragma once

#include "zoo/chains.h"
#include "zoo/zoo.h"

namespace smp::zoo {

struct WordsImpl : torch::nn::Module {
  WordsImpl(int64_t words, int64_t width) {
    weight = register_parameter("weight", torch::randn({words, width}) * 0.3);
  }
  Tensor embed(const Tensor& ids) { return torch::embedding(weight, ids); }
  Tensor logits(const Tensor& hidden) const { return torch::matmul(hidden, weight.t()); }
  Tensor weight;
};
SMP_MODULE(Words, embed, logits);  // no forward at all: two methods share one weight

struct AttendImpl : torch::nn::Module {
  explicit AttendImpl(int64_t width)
      : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        q(register_module("q", nn::Linear(width, width))),
        k(register_module("k", nn::Linear(width, width))),
        v(register_module("v", nn::Linear(width, width))) {}
  Tensor forward(const Tensor& x, const Tensor& memory) {
    auto h = norm(x);
    auto scores = torch::matmul(q(h), k(memory).transpose(-1, -2)) / 3.0;
    return x + torch::matmul(torch::softmax(scores, -1), v(memory));
  }
  nn::LayerNorm norm;
  nn::Linear q, k, v;
};
SMP_MODULE(Attend);

struct DecoderBlockImpl : torch::nn::Module {
  explicit DecoderBlockImpl(int64_t width)
      : self(register_module("self", Attend(width))),
        cross(register_module("cross", Attend(width))),
        feed(register_module("feed", ResidualBlock(width))) {}
  Tensor forward(const Tensor& x, const Tensor& encoded) {
    auto y = self(x, x);
    return feed(cross(y, encoded));
  }
  Attend self, cross;
  ResidualBlock feed;
};
SMP_MODULE(DecoderBlock);

struct TinyT5Impl : ModelImpl {
  explicit TinyT5Impl(bool tied) {
    words = register_module("words", Words(20, 8));
    head = tied ? words : register_module("head", Words(20, 8));
    for (int i = 0; i < 3; ++i) {
      encoder->push_back(ResidualBlock(8));
      decoder->push_back(DecoderBlock(8));
    }
    register_module("encoder", encoder);
    register_module("decoder", decoder);
  }
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto encoded = words->embed(in[0]);
    for (const auto& block : *encoder) encoded = block->as<ResidualBlock>()->forward(encoded);
    auto x = words->embed(in[1]);
    for (const auto& block : *decoder) x = block->as<DecoderBlock>()->forward(x, encoded);
    auto log_probability = torch::log_softmax(head->logits(x), -1).flatten(0, 1);
    return {torch::nll_loss(log_probability, in[1].flatten())};
  }
  Words words{nullptr}, head{nullptr};
  nn::ModuleList encoder, decoder;
};

struct TowerInput {
  Tensor ids;
  std::map<std::string, double> options;
};

struct TowerImpl : torch::nn::Module {
  explicit TowerImpl(int64_t items)
      : table(register_module("table", nn::Embedding(items, 8))),
        linear(register_module("linear", nn::Linear(8, 8))) {}
  Tensor forward(const TowerInput& in) { return linear(table(in.ids)) * in.options.at("scale"); }
  nn::Embedding table;
  nn::Linear linear;
};
SMP_MODULE(Tower);

/// Two towers whose inputs need no gradient.
struct RecommenderImpl : ModelImpl {
  RecommenderImpl()
      : users(register_module("users", Tower(50))),
        items(register_module("items", Tower(60))),
        score(register_module("score", nn::Linear(16, 1))) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    auto u = users(TowerInput{in[0], {{"scale", 0.7}}});
    auto i = items(TowerInput{in[1], {{"scale", 1.3}}});
    return {score(torch::cat({u * i, u + i}, -1)).sigmoid().mean()};
  }
  Tower users, items;
  nn::Linear score;
};

/// Experts shared by two tasks, a gate each, and a loss each.
struct MultiTaskImpl : ModelImpl {
  MultiTaskImpl() {
    for (int i = 0; i < 3; ++i) experts->push_back(TanhLinear(8));
    for (int i = 0; i < 2; ++i) {
      gates->push_back(nn::Linear(8, 3));
      towers->push_back(nn::Linear(8, 1));
    }
    register_module("experts", experts);
    register_module("gates", gates);
    register_module("towers", towers);
  }
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    std::vector<Tensor> outputs;
    for (const auto& expert : *experts) outputs.push_back(expert->as<TanhLinear>()->forward(in[0]));
    auto all = torch::stack(outputs, 1);
    std::vector<Tensor> losses;
    for (int task = 0; task < 2; ++task) {
      auto gate = torch::softmax(gates[task]->as<nn::Linear>()->forward(in[0]), -1);
      auto mixed = (gate.unsqueeze(-1) * all).sum(1);
      losses.push_back(towers[task]->as<nn::Linear>()->forward(mixed).pow(2).mean());
    }
    return losses;
  }
  nn::ModuleList experts, gates, towers;
};

inline std::vector<Case> encoder_decoders() {
  const auto pair = [](int64_t below) {
    return [below](int step) {
      return std::vector<Tensor>{tokens(step, below, {8, 5}), tokens(step + 500, below, {8, 4})};
    };
  };
  std::vector<std::string> t5{"words",     "encoder.1", "encoder.2",       "decoder.0",
                              "decoder.1", "decoder.2", "decoder.1.cross", "decoder.2.cross.k"};
  auto untied = t5;
  untied.push_back("head");
  std::vector<std::string> tasks{"experts.0", "experts.1", "experts.2", "gates.0",
                                 "gates.1",   "towers.0",  "towers.1"};
  const auto rows = [](int step) { return std::vector<Tensor>{numbers(step, {16, 8})}; };
  return {
      {"tiny T5, tied", makes<TinyT5Impl>(true), pair(20), t5},
      {"tiny T5, untied", makes<TinyT5Impl>(false), pair(20), untied},
      {"two-tower recommender",
       makes<RecommenderImpl>(),
       [](int step) {
         return std::vector<Tensor>{tokens(step, 50, {16}), tokens(step + 500, 60, {16})};
       },
       {"users", "items", "score", "users.table"}},
      {"mmoe with two losses", makes<MultiTaskImpl>(), rows, tasks},
      {"mmoe, a backward for each loss", makes<MultiTaskImpl>(), rows, tasks, true},
  };
}

}  // namespace smp::zoo
