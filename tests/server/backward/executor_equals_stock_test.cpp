// tests/server/backward/executor_equals_stock_test.cpp: what users can see of a backward pass
// (gradients, hooks and their order, captures, texts) is the same as with LibTorch's own engine,
// bit for bit.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/backward/executor_testing.h"

namespace smp::server::test {
namespace {

namespace autograd = torch::autograd;

/// What one engine did: words of hooks, and tensors.
struct Outcome {
  std::string log;
  Tensors tensors;
};
using Scenario = std::function<Outcome(Engine)>;

/// Runs `scenario` with both engines.
void expect_equal_bits(const Scenario& scenario) {
  const auto expected = scenario(Engine::kStock), actual = scenario(Engine::kOurs);
  EXPECT_EQ(expected.log, actual.log);
  EXPECT_TRUE(same_bits(expected.tensors, actual.tensors));
}

struct PreHook final : autograd::FunctionPreHook {
  PreHook(std::string& log, std::string word, double factor)
      : log(log), word(std::move(word)), factor(factor) {}
  variable_list operator()(const variable_list& gradients) override {
    log += word + " ";
    auto result = gradients;
    for (auto& gradient : result) {
      if (gradient.defined()) gradient = gradient * factor;
    }
    return result;
  }
  std::string& log;
  std::string word;
  double factor;
};

struct PostHook final : autograd::FunctionPostHook {
  PostHook(std::string& log, std::string word) : log(log), word(std::move(word)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    log += word + " ";
    return outputs;
  }
  std::string& log;
  std::string word;
};

struct PostAccumulateHook final : autograd::PostAccumulateGradHook {
  explicit PostAccumulateHook(std::string& log) : log(log) {}
  void operator()(const at::Tensor& leaf) override {
    log += leaf.grad().defined() ? "accumulated " : "no gradient ";
  }
  std::string& log;
};

/// Logs `word` and multiplies the gradient of `tensor`.
void hook(const at::Tensor& tensor, std::string& log, const std::string& word, double factor) {
  tensor.register_hook([&log, word, factor](const at::Tensor& gradient) {
    log += word + " ";
    return gradient * factor;
  });
}

at::Tensor leaf(int seed) {
  return leaves(1, seed, 3, 3)[0].detach().to(at::kFloat).requires_grad_();
}

// ---- hooks -------------------------------------------------------------------------------------

TEST(ExecutorEqualsStock, InTheOrderOfAllKindsOfHooks) {
  expect_equal_bits([](Engine engine) {
    std::string log;
    const auto x = leaf(1), y = x * 2;
    y.grad_fn()->add_post_hook(std::make_unique<PostHook>(log, "post"));
    y.grad_fn()->add_pre_hook(std::make_unique<PreHook>(log, "pre", 3));
    hook(y, log, "tensor1", 5);
    y.retain_grad();
    hook(y, log, "tensor2", 0.5);
    hook(x, log, "leaf", 7);
    const auto accumulator = autograd::impl::grad_accumulator(x);
    accumulator->add_pre_hook(std::make_unique<PreHook>(log, "leaf pre", 11));
    accumulator->add_post_hook(std::make_unique<PostHook>(log, "leaf post"));
    autograd::impl::set_post_acc_grad_hooks(x, std::make_unique<PostAccumulateHook>(log));
    backward(engine, {(y * y).sum()});
    return Outcome{log, {x.grad(), y.grad()}};
  });
}

TEST(ExecutorEqualsStock, InTheOrderOfSeveralLeaves) {
  expect_equal_bits([](Engine engine) {
    std::string log;
    const auto parameters = leaves(6);
    auto sum = parameters[0].sum();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      hook(parameters[i], log, std::to_string(i), 2);
      sum = sum + (parameters[i] * parameters[(i + 2) % 6]).sum();
    }
    backward(engine, {sum});
    return Outcome{log, gradients_of(parameters)};
  });
}

TEST(ExecutorEqualsStock, ForHooksAddedToALeafAfterTheGraphWasBuilt) {
  expect_equal_bits([](Engine engine) {
    std::string log;
    const auto x = leaf(2);
    const auto loss = (x * x).sum();
    hook(x, log, "late", 3);
    backward(engine, {loss});
    return Outcome{log, {x.grad()}};
  });
}

TEST(ExecutorEqualsStock, ForRetainedGradientsAndInPlaceOperations) {
  expect_equal_bits([](Engine engine) {
    const auto x = leaf(5), y = x * 1;
    y.retain_grad();
    y.mul_(3);
    const auto parts = (y * y).split(1, 0);
    parts[0].retain_grad();
    parts[1].retain_grad();
    backward(engine, {(parts[0] * 3 + parts[2]).sum()});
    return Outcome{"", {x.grad(), y.grad(), parts[0].grad(), parts[1].grad()}};
  });
}

TEST(ExecutorEqualsStock, InWhetherALeafTakesTheGradientWithoutACopy) {
  for (const int kind : {0, 1, 2}) {
    expect_equal_bits([kind](Engine engine) {
      std::string log;
      const auto x = leaf(14);
      const void* data = nullptr;
      x.register_hook([&](const at::Tensor& gradient) { data = gradient.data_ptr(); });
      const auto accumulator = autograd::impl::grad_accumulator(x);
      if (kind == 1) {
        autograd::impl::set_post_acc_grad_hooks(x, std::make_unique<PostAccumulateHook>(log));
      }
      if (kind == 2) accumulator->add_post_hook(std::make_unique<PostHook>(log, "post"));
      backward(engine, {(x.tanh() * x).sum()});
      return Outcome{log + (x.grad().data_ptr() == data ? "taken" : "copied"), {x.grad()}};
    });
  }
}

// ---- captures ----------------------------------------------------------------------------------

TEST(ExecutorEqualsStock, InWhatCapturesSeeOfHooks) {
  for (const int set : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(set);
    expect_equal_bits([set](Engine engine) {
      std::string log;
      const auto x = leaf(3), w = leaf(4), y = x.mm(w), z = y.tanh();
      hook(y, log, "y", 2);
      hook(z, log, "z", 3);
      hook(x, log, "x", 5);
      hook(w, log, "w", 7);
      y.grad_fn()->add_pre_hook(std::make_unique<PreHook>(log, "y pre", 13));
      const auto loss = (z * z).sum() + y.sum();
      const std::vector<Tensors> sets = {{y}, {y, x}, {x, w}, {z, y, w, y}, {loss, x}};
      auto results = grad(engine, {loss}, sets[static_cast<std::size_t>(set)]);
      results.push_back(x.grad());
      results.push_back(w.grad());
      return Outcome{log, results};
    });
  }
}

TEST(ExecutorEqualsStock, ForACaptureOfTheSingleRoot) {
  expect_equal_bits([](Engine engine) {
    std::string log;
    const auto x = leaf(3), y = x.tanh();
    hook(y, log, "y", 2);
    y.grad_fn()->add_pre_hook(std::make_unique<PreHook>(log, "pre", 13));
    auto results = grad(engine, {y}, {y});
    log += thrown_by([&] { grad(engine, {y}, {x}); }).substr(0, 40);
    return Outcome{log, results};
  });
}

TEST(ExecutorEqualsStock, ForCapturesThatNothingReaches) {
  for (const bool reach_another : {false, true}) {
    expect_equal_bits([=](Engine engine) {
      std::string log;
      const auto x = leaf(3), w = leaf(4);
      const auto unrelated = (w * w).tanh().exp();
      const auto loss = x.mm(x).tanh().sum() * 2;
      loss.grad_fn()->add_pre_hook(std::make_unique<PreHook>(log, "root pre", 13));
      hook(loss, log, "root", 2);
      hook(x, log, "x", 5);
      Tensors results;
      log += thrown_by([&] {
        results = grad(engine, {loss}, reach_another ? Tensors{unrelated, x, w} : Tensors{w});
      });
      return Outcome{log, results};
    });
  }
}

// ---- kinds of graphs ---------------------------------------------------------------------------

TEST(ExecutorEqualsStock, ForSecondDerivatives) {
  expect_equal_bits([](Engine engine) {
    std::string log;
    const auto x = leaf(15);
    hook(x, log, "x", 1.5);
    const auto y = (x.mm(x).tanh() * x).sum();
    const auto first = grad(engine, {y}, {x}, {.keep_graph = true, .create_graph = true})[0];
    EXPECT_TRUE(first.requires_grad());
    backward(engine, {first.pow(2).sum()});
    return Outcome{log, {first.detach(), x.grad()}};
  });
}

TEST(ExecutorEqualsStock, ForSeveralRootsAndARetainedGraph) {
  expect_equal_bits([](Engine engine) {
    const auto x = leaf(16);
    const auto a = (x * 2).sum(), b = (x * x).tanh().mean();
    for (const bool keep : {true, false}) {
      backward(engine, {a, b}, {at::full({}, 2.0f), at::Tensor()}, {.keep_graph = keep});
    }
    return Outcome{"", {x.grad()}};
  });
}

TEST(ExecutorEqualsStock, ForBroadcasting) {
  expect_equal_bits([](Engine engine) {
    const auto a = leaves(1, 1, 1, 1)[0].detach().squeeze().requires_grad_();
    const auto b = leaves(1, 2, 1, 3)[0], c = leaves(1, 3, 4, 1)[0];
    backward(engine, {(a * b + c * b.expand({4, 3})).pow(2).sum()});
    return Outcome{"", {a.grad(), b.grad(), c.grad()}};
  });
}

TEST(ExecutorEqualsStock, ForBfloat16AndOtherCasts) {
  expect_equal_bits([](Engine engine) {
    const auto x = leaf(11);
    const auto h = x.to(at::kBFloat16);
    backward(engine, {h.mm(h).to(at::kFloat).sum() + (x * h.to(at::kDouble)).sum()});
    return Outcome{"", {x.grad()}};
  });
}

TEST(ExecutorEqualsStock, ForComplexNumbers) {
  expect_equal_bits([](Engine engine) {
    const auto x = leaf(12), z = at::complex(x, x * 2);
    backward(engine, {at::real(z * z.conj()).sum() + at::abs(at::fft_fft(z)).sum()});
    return Outcome{"", {x.grad()}};
  });
}

TEST(ExecutorEqualsStock, ForSparseGradients) {
  for (const bool dense_too : {false, true}) {
    expect_equal_bits([dense_too](Engine engine) {
      const auto weight = leaves(1, 2, 10, 4)[0];
      const auto rows = [&](at::IntArrayRef indices) {
        return at::embedding(weight, at::tensor(indices), -1, false, true);
      };
      auto loss = rows({1, 2, 2}).sum() + rows({2, 9}).pow(2).sum();
      if (dense_too) loss = loss + weight.narrow(0, 0, 2).sum() * 0.5;
      backward(engine, {loss});
      return Outcome{weight.grad().is_sparse() ? "sparse" : "dense", {weight.grad()}};
    });
  }
}

/// Two differentiable outputs, one that is not; logs which gradients are defined.
struct TwoOutputs : autograd::Function<TwoOutputs> {
  static inline std::string log;
  static variable_list forward(autograd::AutogradContext* context, at::Tensor x, at::Tensor y,
                               bool materialize) {
    context->save_for_backward({x, y});
    context->set_materialize_grads(materialize);
    const auto sign = (x > 0).to(at::kFloat);
    context->mark_non_differentiable({sign});
    return {x * 2 + y, x * y, sign};
  }
  static variable_list backward(autograd::AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    for (const auto& gradient : gradients) log += gradient.defined() ? '1' : '0';
    const auto& g = gradients[1];
    if (!g.defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    return {g * saved[1], g * saved[0], at::Tensor()};
  }
};

TEST(ExecutorEqualsStock, ForCustomFunctionsWithUndefinedGradients) {
  for (const bool materialize : {true, false}) {
    for (const std::size_t used : {0u, 1u}) {
      expect_equal_bits([=](Engine engine) {
        TwoOutputs::log.clear();
        const auto x = leaf(7), y = leaf(8);
        const auto outputs = TwoOutputs::apply(x * 1, y * 1, materialize);
        backward(engine, {outputs[used].sum()});
        return Outcome{TwoOutputs::log, {x.grad(), y.grad()}};
      });
    }
  }
}

TEST(ExecutorEqualsStock, ForBackwardInsideAHook) {
  expect_equal_bits([](Engine engine) {
    const auto x = leaf(18), w = leaf(19), v = leaf(20), y = x * 2;
    y.register_hook([&](const at::Tensor& gradient) {
      const at::AutoGradMode on(true);
      backward(engine, {(w * gradient.detach()).sum()});
      backward(engine == Engine::kOurs ? Engine::kStock : Engine::kOurs,
               {(v * gradient.detach()).sum()});
      return gradient;
    });
    backward(engine, {y.pow(2).sum()});
    return Outcome{"", {x.grad(), w.grad(), v.grad()}};
  });
}

TEST(ExecutorEqualsStock, InTheTextForAGradientOfTheWrongShape) {
  expect_equal_bits([](Engine engine) {
    const auto x = leaf(13), y = x * 2;
    y.grad_fn()->add_pre_hook(nullptr);
    y.grad_fn()->pre_hooks().clear();
    const auto text = thrown_by([&] { backward(engine, {y}, {at::ones({7, 5})}); });
    EXPECT_NE(text, "nothing was thrown");
    return Outcome{text.substr(0, text.find('\n')), {}};
  });
}

TEST(ExecutorEqualsStock, ForRecurrentAttentionConvolutionAndNormLayers) {
  expect_equal_bits([](Engine engine) {
    const auto x = leaves(1, 1, 10, 8)[0].view({5, 2, 8});
    const auto weights = leaves(2, 2, 32, 8);  // of an LSTM: input to hidden, hidden to hidden
    const auto projections = leaves(4, 3, 8, 8);
    const auto kernel = leaves(1, 4, 8, 9)[0];
    const auto zero = at::zeros({1, 2, 8}, at::kDouble);
    const auto hidden =
        std::get<0>(at::lstm(x, {zero, zero}, weights, false, 1, 0.0, true, false, false));
    const auto heads = [&](std::size_t i) {
      return at::linear(hidden, projections[i]).view({5, 2, 2, 4}).permute({1, 2, 0, 3});
    };
    const auto mixed = at::scaled_dot_product_attention(heads(0), heads(1), heads(2));
    const auto joined = at::linear(mixed.permute({2, 0, 1, 3}).reshape({5, 2, 8}), projections[3]);
    const auto image = at::conv2d(joined.view({1, 2, 5, 8}), kernel.view({4, 2, 3, 3}));
    backward(engine, {at::layer_norm(image, {6}).pow(3).sum() + joined.pow(2).sum()});
    auto parameters = weights;
    parameters.insert(parameters.end(), projections.begin(), projections.end());
    parameters.push_back(kernel);
    return Outcome{"", gradients_of(parameters)};
  });
}

TEST(ExecutorEqualsStock, ForAutocastWithItsWeightCache) {
  expect_equal_bits([](Engine engine) {
    const auto weight = leaf(3), x = leaf(4).detach();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const auto loss = at::linear(at::tanh(at::linear(x, weight)), weight).to(at::kFloat).sum();
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    backward(engine, {loss});
    return Outcome{"", {weight.grad()}};
  });
}

}  // namespace
}  // namespace smp::server::test
