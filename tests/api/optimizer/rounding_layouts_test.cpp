// Many steps under stochastic_rounding in a dozen layouts: parameters stay the same to the bit, on
// every rank that holds them. Where replicas draw for themselves, norms drift apart (HLAT).
#include <gmock/gmock.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cstdlib>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "smp/smp.h"
#include "smp/tp.h"
#include "tp/group/slice_part.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {
namespace rounding_layouts_test {

using at::Tensor;
using Values = std::map<std::string, Tensor>;

/// Of the optimizer; SMP_ROUNDING_STEPS=10000 asks for as many, which take two minutes.
int steps() {
  const char* const wanted = std::getenv("SMP_ROUNDING_STEPS");
  return wanted == nullptr ? 500 : std::atoi(wanted);
}

struct Layout {
  int ranks, pp, tp;
  bool sharded = false;

  Config config() const {
    Config config;
    config.pipeline_parallel_degree = pp;
    config.tensor_parallel_degree = tp;
    config.shard_optimizer_state = sharded;
    config.microbatches = 2;
    config.precision = "bf16_sr";
    config.plan_cache = "off";
    config.skip_tracing = true;
    return config;
  }
};

void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.ranks << " ranks, pp " << layout.pp << ", tp " << layout.tp
       << (layout.sharded ? ", sharded state" : "");
}

const std::vector<Layout> kLayouts{{2, 2, 1},       {2, 1, 2}, {2, 1, 1}, {2, 1, 1, true},
                                   {4, 2, 2},       {4, 1, 4}, {4, 2, 1}, {4, 2, 1, true},
                                   {4, 1, 2, true}, {4, 4, 1}, {8, 2, 2}, {8, 2, 2, true}};

struct BlockImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x + narrow(wide(norm(x)).tanh()); }
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
  nn::DistributedLinear wide =
      register_module("wide", nn::DistributedLinear(8, 12, nn::LinearSplit::kOutputs));
  nn::DistributedLinear narrow = register_module("narrow", nn::DistributedLinear(12, 8));
};
SMP_MODULE(Block);

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return head(last(first(x))); }
  Block first = register_module("first", Block());
  Block last = register_module("last", Block());
  nn::Linear head = register_module("head", nn::Linear(8, 3));
};
SMP_MODULE(Net);

constexpr int kPatterns = 7;

/// Gradients that no layout changes: they depend on what the parameter is in the whole model.
Tensor gradient_of(std::int64_t elements, int pattern) {
  const auto place = torch::arange(elements, torch::kFloat);
  return (torch::sin(place * 0.7 + static_cast<float>(pattern * 2 + 1)) * 0.1).to(at::kBFloat16);
}

class Trained {
 public:
  Trained() : net_(made()), model_(net_) {
    model_.set_partition("", 0);
    model_.set_partition("last", pp_size() - 1);
    model_.set_partition("head", pp_size() / 2);
  }

  void train() {
    DistributedOptimizer optimizer(model_, torch::optim::AdamW(model_.parameters(), 1e-4));
    auto run = smp::step([&](const Tensor& x) {
      model_.backward(model_(x.to(at::kBFloat16)).to(at::kFloat).sum());
    });
    run(torch::ones({2 * data_shard().count, 8}).narrow(0, 0, 2));
    find_gradients();
    for (int step = 0; step < steps(); ++step) {
      for (auto& [parameter, patterns] : gradients_) {
        parameter.mutable_grad() = patterns[static_cast<std::size_t>(step % kPatterns)];
      }
      optimizer.step();
    }
  }

  /// What this rank and those that hold other slices have, joined.
  Values values() {
    Values all;
    for (const auto& [name, value] : model_.state_dict(kAllPpRanks)) all[name] = value.clone();
    return all;
  }

 private:
  static Net made() {
    torch::manual_seed(3);
    return {};
  }

  /// Of the parameters that this rank steps.
  void find_gradients() {
    const tp::SlicedParameters slices(*net_);
    for (const auto& [name, parameter] : model_.local_named_parameters()) {
      if (!parameter.grad().defined()) continue;  // stepped by another replica
      auto sizes = parameter.sizes().vec();
      const auto slice = slices.find(parameter);
      if (slice) sizes[static_cast<std::size_t>(slice->dim)] = slice->whole;
      std::int64_t elements = 1;
      for (const auto size : sizes) elements *= size;
      std::vector<Tensor> patterns;
      for (int pattern = 0; pattern < kPatterns; ++pattern) {
        auto whole = gradient_of(elements, pattern).view(sizes);
        if (slice) whole = tp::part_of(whole, slice->dim, parameter.size(slice->dim), tp_rank());
        patterns.push_back(whole.contiguous());
      }
      gradients_.emplace_back(parameter, std::move(patterns));
    }
  }

  Net net_;
  DistributedModel<Net> model_;
  std::vector<std::pair<Tensor, std::vector<Tensor>>> gradients_;
};

TEST(RoundingLayouts, KeepTheSameBitsForManySteps) {
  Values expected;
  const auto each = [&] {
    Trained trained;
    const auto before = trained.values();
    trained.train();
    const auto got = trained.values();
    if (expected.empty()) {
      for (const auto& [name, value] : got) EXPECT_FALSE(torch::equal(value, before.at(name)));
      expected = got;
    }
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [name, value] : expected) {
      EXPECT_TRUE(torch::equal(got.at(name), value)) << name << " on rank " << rank();
    }
  };
  run_local(1, each, Layout{1, 1, 1}.config(), {.seed = 1});
  ASSERT_EQ(expected.size(), 14u);
  for (const auto& layout : kLayouts) {
    SCOPED_TRACE(testing::PrintToString(layout));
    run_local(layout.ranks, each, layout.config(), {.seed = 1});
  }
}

}  // namespace rounding_layouts_test
}  // namespace smp
