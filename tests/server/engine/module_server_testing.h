// tests/server/engine/module_server_testing.h: a model whose modules call each other over two or
// three ranks, and steps that train it, compared with LibTorch.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "module/routed_models.h"
#include "server/engine/local_servers.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::server::test {

/// Refuses negative numbers, forward or backward.
struct FussyImpl : smp::test::WeightedImpl {
  using WeightedImpl::WeightedImpl;
  at::Tensor forward(const at::Tensor& x) {
    if (x.lt(0).any().item<bool>()) throw std::invalid_argument("x is negative");
    auto y = x * weight;
    if (!y.requires_grad()) return y;
    y.register_hook([](const at::Tensor& gradient) {
      if (gradient.lt(0).any().item<bool>()) throw std::domain_error("the gradient is negative");
    });
    return y;
  }
};
SMP_MODULE(Fussy);

/// Ranks call each other in a ring: middle, of another rank than this, calls back.
struct InnerImpl : torch::nn::Module {
  smp::test::Scale scale{nullptr};
  InnerImpl() { scale = register_module("scale", smp::test::Scale(3)); }
  at::Tensor forward(const at::Tensor& x) { return scale(x).square(); }
};
SMP_MODULE(Inner);
struct RingImpl : torch::nn::Module {
  Inner inner{nullptr};
  smp::test::Scale last{nullptr};
  Fussy fussy{nullptr};
  RingImpl() {
    inner = register_module("inner", Inner());
    last = register_module("last", smp::test::Scale(5));
    fussy = register_module("fussy", Fussy(2));
  }
  at::Tensor forward(const at::Tensor& x) { return last(inner(x) + fussy(x)); }
};
SMP_MODULE(Ring);

inline at::Tensor input_of(int microbatch) {
  return at::arange(1, 3, at::kFloat) * (microbatch + 1);
}

/// The same microbatches in LibTorch, one after the other.
inline std::vector<at::Tensor> gradients_of_libtorch(int microbatches) {
  Ring model;
  for (int i = 0; i < microbatches; ++i) model(input_of(i)).sum().backward();
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

class ModuleServerTest : public ::testing::Test {
 protected:
  using Body = std::function<void(int microbatch, Ring& model, StepEngine& engine)>;

  /// "inner" is on rank 1; its own "scale" on the last rank; "fussy" too.
  std::map<std::string, int> owners_of(int ranks) const {
    return {{"inner", 1}, {"inner.scale", ranks == 2 ? 0 : 2}, {"fussy", ranks - 1}};
  }
  static void train(int microbatch, Ring& model, StepEngine& engine) {
    engine.backward({model(input_of(microbatch)).sum()}, {}, /*keep_graph=*/false);
  }
  void step(ModuleServer& server, Ring& model, const Body& body, int microbatches = 1) {
    StepTask task;
    task.microbatches = microbatches;
    task.schedule = schedule_.get();
    task.weights.assign(static_cast<std::size_t>(microbatches), 1);
    task.outputs = outputs_;
    task.body = [&](int microbatch) { body(microbatch, model, server.engine()); };
    server.run_step(task);
  }
  /// `ranks` of them run `rank_main` with a model whose modules are placed.
  void on_ranks(int ranks, const std::function<void(ModuleServer&, Ring&)>& rank_main,
                std::uint64_t seed = 1) {
    servers_ = std::make_unique<LocalServers>(ranks, seed);
    servers_->run([&](ModuleServer& server) {
      Ring model;
      place_modules(server, *model, owners_of(ranks));
      rank_main(server, model);
    });
  }
  /// The gradient of every parameter from the rank that owns it; no other rank has one.
  void collect_gradients(ModuleServer& server, Ring& model, int ranks) {
    const auto owners = owners_of(ranks);
    std::size_t number = 0;
    for (const auto& item : model->named_parameters()) {
      const auto path = item.key().substr(0, item.key().rfind('.'));
      const auto owner = owners.find(path);
      const bool own = server.rank() == PpRank(owner == owners.end() ? 0 : owner->second);
      gradients_.resize(std::max(gradients_.size(), ++number));
      if (own) gradients_[number - 1] = item.value().grad();
      EXPECT_EQ(item.value().grad().defined(), own) << item.key();
    }
  }
  void expect_gradients_of_libtorch(int microbatches) {
    const auto expected = gradients_of_libtorch(microbatches);
    ASSERT_EQ(gradients_.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(gradients_[i], expected[i])) << i << ": " << gradients_[i];
    }
  }
  /// A step in which `body` fails, and one that is fine.
  std::vector<std::string> failures_of(int ranks, const Body& body) {
    std::vector<std::string> texts(static_cast<std::size_t>(ranks));
    gradients_.clear();
    on_ranks(ranks, [&](ModuleServer& server, Ring& model) {
      texts[server.rank().index()] = refusal<RemoteError>([&] { step(server, model, body); });
      model->zero_grad();
      step(server, model, train);
      collect_gradients(server, model, ranks);
      EXPECT_EQ(server.core().workers.busy(), 0u);
    });
    expect_gradients_of_libtorch(1);
    return texts;
  }

  std::unique_ptr<schedule::Schedule> schedule_ = schedule::make_simple();
  std::vector<Packet>* outputs_ = nullptr;
  std::unique_ptr<LocalServers> servers_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace smp::server::test
