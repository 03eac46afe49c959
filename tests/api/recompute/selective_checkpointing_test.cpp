// Activation checkpointing that keeps what products return, and that groups the modules of a
// Sequential: the bits without it, what is kept and how often what runs.
#include "smp/recompute/checkpoint_sequential.h"

#include <torch/types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/chain_model.h"
#include "support/tensor_bytes.h"

namespace smp {
namespace selective_checkpointing_test {

using at::Tensor;
using testing::HasSubstr;

// ---- products ----------------------------------------------------------------------------------

/// Matrix products of all kinds, a convolution and attention, with what is cheap in between; some
/// results are written in place, some through a view.
struct ProductsImpl : torch::nn::Module {
  ProductsImpl()
      : linear(register_module("linear", nn::Linear(4, 4))),
        conv(register_module("conv", nn::Conv1d(nn::Conv1dOptions(2, 2, 1)))),
        drop(register_module("drop", nn::Dropout(0.5))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) {
    auto h = linear(x);  // [2, 3, 4]
    h.relu_();
    h = torch::bmm(h, h.transpose(1, 2)).sigmoid();  // [2, 3, 3]
    auto wide = torch::matmul(h, x.exp());           // [2, 3, 4]
    wide.select(1, 0).mul_(2);
    auto q = wide.unsqueeze(1);  // [2, 1, 3, 4]
    auto a = at::scaled_dot_product_attention(q, q.tanh(), q.sin()).squeeze(1);
    auto c = conv(drop(a).transpose(0, 1));  // [3, 2, 4]
    return c.exp().transpose(0, 1) * wide;
  }
  nn::Linear linear;
  nn::Conv1d conv;
  nn::Dropout drop;
};
SMP_MODULE(Products);

Products make_products() {
  torch::manual_seed(3);
  return {};
}

std::vector<Tensor> gradients_of(const Tensor& loss, const torch::nn::Module& net,
                                 const Tensor& x) {
  auto inputs = net.parameters();
  inputs.push_back(x);
  return torch::autograd::grad({loss}, inputs);
}

Tensor batch() {
  torch::manual_seed(9);
  return torch::randn({2, 3, 4}, torch::kDouble).requires_grad_();
}

std::vector<Tensor> trained(Products& net) {
  const auto x = batch();
  torch::manual_seed(5);
  return gradients_of(net(x).square().sum(), *net, x);
}

TEST(KeptProducts, GiveTheSameBits) {
  auto plain = make_products(), selective = make_products();
  set_activation_checkpointing(selective, {.keep = kProducts});
  const auto wanted = trained(plain), found = trained(selective);
  ASSERT_EQ(wanted.size(), found.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(torch::equal(wanted[i], found[i])) << i;
}

/// The second run has the memory that the first one made, which nobody else can have.
TEST(KeptProducts, AreComputedOnce) {
  std::vector<const void*> products;
  int cheap = 0;
  const auto code = [&](const Tensor& x, const Tensor& w) {
    ++cheap;
    const auto y = torch::mm(x.exp(), w);
    products.push_back(y.const_data_ptr());
    return y.sin();
  };
  const auto x = torch::randn({3, 3}).requires_grad_(), w = torch::randn({3, 3}).requires_grad_();
  smp::checkpoint({.keep = kProducts}, code, x, w).sum().backward();
  EXPECT_EQ(cheap, 2);
  ASSERT_EQ(products.size(), 2u);
  EXPECT_EQ(products[0], products[1]);
}

/// The bytes that `code` leaves alive. Every CPU tensor is counted from the first call on.
std::int64_t bytes_left_by(const std::function<Tensor()>& code) {
  static const bool counted = (support::count_tensor_bytes(), true);
  static_cast<void>(counted);
  const auto before = support::live_tensor_bytes();
  const auto result = code();
  return support::live_tensor_bytes() - before;
}

/// In a process of its own, whose allocator counts.
void check_what_is_held() {
  nn::Linear wide(64, 64);
  const auto code = [&](const Tensor& x) { return wide(x.exp()).sin().cos().sum(); };
  const auto x = torch::randn({32, 64}).requires_grad_();
  constexpr std::int64_t kTensor = 32 * 64 * 4;
  const auto all = bytes_left_by([&] { return code(x); });
  const auto some = bytes_left_by([&] { return smp::checkpoint({.keep = kProducts}, code, x); });
  const auto none = bytes_left_by([&] { return smp::checkpoint(code, x); });
  const bool right = all >= 3 * kTensor && some >= kTensor && some < kTensor + 1024 && none < 1024;
  if (!right) std::fprintf(stderr, "%ld, %ld and %ld bytes\n", long(all), long(some), long(none));
  std::_Exit(right ? 0 : 1);
}

TEST(KeptProducts, HoldTheirResultsAndNothingElse) {
  EXPECT_EXIT(check_what_is_held(), testing::ExitedWithCode(0), "");
}

/// A second run that failed is made again from the first product on.
TEST(KeptProducts, AreTakenFromTheFirstOnAfterAFailure) {
  int runs = 0;
  const auto code = [&](const Tensor& of) {
    const auto y = torch::mm(of.exp(), of);
    if (++runs == 2) throw std::runtime_error("once");
    return torch::mm(y.sin(), of).cos();
  };
  const auto x = torch::randn({3, 3}, torch::kDouble).requires_grad_();
  const auto y = smp::checkpoint({.keep = kProducts}, code, x).sum();
  const auto gradient = [&] {
    return torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true)[0];
  };
  EXPECT_EQ(refusal<std::runtime_error>([&] { gradient(); }), "once");
  EXPECT_TRUE(torch::equal(gradient(), torch::autograd::grad({code(x).sum()}, {x})[0]));
}

TEST(KeptProducts, RefusesOtherProductsTheSecondTime) {
  int runs = 0;
  const auto x = torch::randn({3, 3}).requires_grad_();
  auto y = smp::checkpoint(
      {.keep = kProducts},
      [&](const Tensor& of) {
        const auto e = of.exp();
        const auto zeros = torch::zeros({3, 3});
        return (++runs == 1 ? torch::mm(e, e) : torch::addmm(zeros, e, e)).sin();
      },
      x);
  EXPECT_THAT(refusal<UsageError>([&] { y.sum().backward(); }),
              HasSubstr("product number 0 is aten::addmm, and was aten::mm"));
}

/// On ranks, in steps: products of a call that has modules elsewhere.
std::map<std::string, Tensor> trained_over(int ranks, const CheckpointOptions* options,
                                           const std::vector<int>& stages, bool fast) {
  std::map<std::string, Tensor> all;
  Config config;
  config.microbatches = 4;
  config.plan_cache = "off";
  config.static_mode = fast;
  run_local(ranks,
            [&] {
              torch::manual_seed(4);
              nn::Sequential net;
              for (int i = 0; i < 4; ++i) net->push_back(Layer(3, 3));
              net->push_back(torch::nn::Dropout(0.5));
              net->push_back(Layer(3, 3));
              if (options != nullptr) set_activation_checkpointing(net, *options);
              DistributedModel model(net);
              model.set_partition("", 0);
              for (std::size_t i = 0; i < net->size(); ++i) {
                if (i == 4) continue;
                model.set_partition(std::to_string(i), stages[i % stages.size()] % ranks);
              }
              auto train = smp::step([&](Tensor x) {
                if (!is_tracing()) model.backward(net->forward(x).square().sum());
              });
              for (int step = 0; step < 7; ++step) train(rows(8));
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                all[name] = parameter.grad().clone();
              }
            },
            config, {.seed = 1});
  return all;
}

TEST(SelectiveCheckpointing, OverRanksGivesTheSameBits) {
  const std::vector<CheckpointOptions> all = {{.keep = kProducts},
                                              {.strategy = "each"},
                                              {.strategy = "contiguous"},
                                              {.strategy = "group_2"},
                                              {.strategy = "group_3", .keep = kProducts}};
  for (const int ranks : {1, 2, 3}) {
    for (const std::vector<int>& stages :
         {std::vector{0, 0, 1, 1, 2, 2}, {0, 1, 0, 1, 2, 0}, {1, 1, 1, 0, 0, 0}}) {
      const bool fast = ranks == 2;
      const auto kept = trained_over(ranks, nullptr, stages, fast);
      for (const auto& options : all) {
        SCOPED_TRACE(std::to_string(ranks) + " " + options.strategy);
        const auto again = trained_over(ranks, &options, stages, fast);
        ASSERT_EQ(kept.size(), again.size());
        for (const auto& [name, value] : kept) {
          EXPECT_TRUE(torch::equal(value, again.at(name))) << name;
        }
      }
    }
  }
}

// ---- groups ------------------------------------------------------------------------------------

/// Notes how many of its kind hold what they save when it runs again.
struct NotesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    order.push_back(number);
    return x.exp().sin();
  }
  int number = 0;
  static std::vector<int> order;
};
std::vector<int> NotesImpl::order;
SMP_MODULE(Notes);

std::vector<int> order_of(const std::string& strategy) {
  nn::Sequential net;
  for (int i = 0; i < 5; ++i) {
    Notes notes;
    notes->number = i;
    net->push_back(notes);
  }
  NotesImpl::order.clear();
  const auto x = torch::ones({2}).requires_grad_();
  Tensor y;
  if (strategy == "call") {
    y = checkpoint_sequential({.strategy = "group_2"}, net, x);
  } else {
    set_activation_checkpointing(net, {.strategy = strategy});
    y = net->forward(x);
  }
  y.sum().backward();
  return NotesImpl::order;
}

TEST(CheckpointSequential, GroupsRunAgainFromTheLastOn) {
  using testing::ElementsAre;
  EXPECT_THAT(order_of("each"), ElementsAre(0, 1, 2, 3, 4, 4, 3, 2, 1, 0));
  EXPECT_THAT(order_of("contiguous"), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  EXPECT_THAT(order_of("group_2"), ElementsAre(0, 1, 2, 3, 4, 4, 2, 3, 0, 1));
  EXPECT_THAT(order_of("group_9"), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  EXPECT_THAT(order_of("call"), ElementsAre(0, 1, 2, 3, 4, 4, 2, 3, 0, 1));
}

struct DoublesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto h = x.exp();
    return (is_training() ? h * 2 : h).sin();
  }
};
SMP_MODULE(Doubles);

TEST(CheckpointSequential, FlagsAndRandomNumbersAreThoseOfTheCall) {
  for (const bool in_session : {false, true}) {
    const auto run = [] {
      std::vector<Tensor> gradients;
      for (const bool grouped : {false, true}) {
        nn::Sequential net{Doubles(), torch::nn::Dropout(0.5), Doubles()};
        if (grouped) set_activation_checkpointing(net, {.strategy = "group_2"});
        torch::manual_seed(1);
        const auto x = torch::ones({64}).requires_grad_();
        auto y = net->forward<Tensor>(x);
        net->eval();
        y.sum().backward();
        EXPECT_FALSE(net->is_training());
        gradients.push_back(x.grad());
      }
      EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
    };
    in_session ? on_ranks(1, run) : run();
  }
}

TEST(CheckpointSequential, ACallGroupsOnce) {
  nn::Sequential net{Notes(), Notes()};
  const auto x = torch::ones({2}).requires_grad_();
  checkpoint_sequential(CheckpointOptions(), net, x).sum().backward();
  NotesImpl::order.clear();
  net->forward(x).sum().backward();
  EXPECT_EQ(NotesImpl::order.size(), 2u);
}

TEST(CheckpointSequential, RefusesWhatIsNoStrategy) {
  nn::Sequential net{Notes(), Notes()};
  for (const char* strategy : {"group_0", "group_", "group_2x", "all"}) {
    EXPECT_THAT(
        refusal<UsageError>([&] { set_activation_checkpointing(net, {.strategy = strategy}); }),
        HasSubstr("use \"each\", \"contiguous\" or \"group_2\""));
  }
  Layer layer(2, 2);
  EXPECT_THAT(
      refusal<UnsupportedError>([&] { set_activation_checkpointing(layer, {.strategy = "each"}); }),
      HasSubstr("strategies are for an smp::nn::Sequential"));
}

}  // namespace selective_checkpointing_test
}  // namespace smp
