// Tensors of other ranks in the hands of a user: what must work works, and every read or write is
// refused with a text that names tensor, ranks and remedy (docs/design.md, Foreign parameters).
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <cmath>
#include <sstream>

#include "api/two_ranks.h"

namespace smp {
namespace foreign_tensors_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kLarge = 20000;  // no rank but its owner keeps 4-byte buffers of that size

struct HolderImpl : torch::nn::Module {
  HolderImpl()
      : linear(register_module("linear", nn::Linear(4, 4))),
        weight(register_parameter("weight", torch::ones({4}))),
        half(register_parameter("half", torch::ones({4}, torch::kHalf))),
        complex(register_parameter("complex", torch::ones({4}, torch::kComplexDouble))),
        floats(register_buffer("floats", torch::ones({kLarge}))),
        integers(register_buffer("integers", torch::arange(kLarge))),
        flags(register_buffer("flags", torch::ones({4 * kLarge}, torch::kBool))) {}
  Tensor forward(const Tensor& x) { return linear(x) * weight; }
  std::vector<Tensor> all() { return {weight, half, complex, floats, integers, flags}; }
  nn::Linear linear;
  Tensor weight, half, complex, floats, integers, flags;
};
SMP_MODULE(Holder);

struct TopImpl : torch::nn::Module {
  TopImpl()
      : near(register_module("near", nn::Linear(4, 4))), far(register_module("far", Holder())) {}
  Tensor forward(const Tensor& x) { return far(near(x)); }
  nn::Linear near;
  Holder far;
};
SMP_MODULE(Top);

// A root whose calls are not routed: nothing but the tensors themselves can refuse.
struct PlainRootImpl : torch::nn::Module {
  PlainRootImpl()
      : near(register_module("near", nn::Linear(4, 4))), far(register_module("far", Holder())) {}
  Tensor forward(const Tensor& x) { return far(near(x)); }
  nn::Linear near;
  Holder far;
};
TORCH_MODULE(PlainRoot);

template <class Net>
struct Rank {
  Rank() : model(net) {
    model.set_partition("far", 1);
    model.place();
  }
  void step() {
    auto train = smp::step([this](Tensor x) {
      auto loss = model(x).pow(2).mean();
      model.backward(loss);
      return loss;
    });
    train(torch::ones({4, 4}));
  }
  Net net;
  DistributedModel<Net> model;
};

/// What is said about `use`, whoever says it.
std::string said(const std::function<void()>& use) { return refusal<std::exception>(use); }

TEST(ForeignTensors, OfEveryTypeRefuseEveryUse) {
  using Use = std::function<void(const Tensor&)>;
  const std::vector<Use> reads{
      [](const Tensor& t) { t.sum(); },
      [](const Tensor& t) { static_cast<void>(t.norm().item<double>() > 1); },
      [](const Tensor& t) { static_cast<void>(t[0].item()); },
      [](const Tensor& t) { t.index({0}); },
      [](const Tensor& t) { static_cast<void>(t > 1); },
      [](const Tensor& t) { static_cast<void>(t == torch::ones({})); },
      [](const Tensor& t) { at::equal(t, torch::ones({4})); },
      [](const Tensor& t) {
        torch::cat({torch::ones({4}), t});
      },
      [](const Tensor& t) { torch::where(torch::ones({1}, torch::kBool), t, t); },
      [](const Tensor& t) { torch::ones({4}).copy_(t); },
      [](const Tensor& t) { t.detach(); },
      [](const Tensor& t) { t.clone(); },
      [](const Tensor& t) { t.data().sum(); },
      [](const Tensor& t) { t.view({-1}); },
      [](const Tensor& t) { t.to(torch::kDouble); },
      [](const Tensor& t) { t.cpu().sum(); },
      [](const Tensor& t) { t.contiguous().sum(); },
      [](const Tensor& t) { static_cast<void>(t.data_ptr()); },
      [](const Tensor& t) { static_cast<void>(t.storage()); },
      [](const Tensor& t) {
        std::stringstream stream;
        torch::save(t, stream);
      },
      [](const Tensor& t) {
        std::stringstream stream;
        stream << t;
      },
  };
  const std::vector<Use> writes{
      [](const Tensor& t) { t.zero_(); },
      [](const Tensor& t) { t.fill_(1); },
      [](const Tensor& t) { t.copy_(torch::ones({})); },
      [](const Tensor& t) { t.mul_(2); },
      [](const Tensor& t) { t.index_put_({torch::zeros({1}, torch::kLong)}, torch::ones({})); },
      [](const Tensor& t) { t.data().fill_(1); },
      [](const Tensor& t) { torch::nn::init::normal_(t); },
      [](const Tensor& t) { torch::nn::init::zeros_(t); },
  };
  on_ranks(2, [&] {
    Rank<Top> own;
    if (rank() == 1) return;
    const at::NoGradGuard no_grad;
    for (const auto& tensor : own.net->far->all()) {
      const auto named = AllOf(HasSubstr("rank 0: "), HasSubstr(" lives on rank 1"),
                               HasSubstr("far."), HasSubstr("model.owns(tensor)"));
      for (const auto& use : reads) EXPECT_THAT(said([&] { use(tensor); }), named);
      for (const auto& use : writes) EXPECT_THAT(said([&] { use(tensor); }), named);
      EXPECT_THAT(said([&] { tensor.set_data(torch::ones_like(torch::ones({4}))); }), named);
    }
    EXPECT_THAT(said([&] { own.net->far->weight + 1; }), HasSubstr("parameter far.weight"));
    EXPECT_THAT(said([&] { own.net->far->flags.any(); }), HasSubstr("buffer far.flags"));
  });
}

/// As the state of a program's own optimizer is made, of all parameters.
TEST(ForeignTensors, LendTheirShapeToNewTensors) {
  on_ranks(2, [] {
    Rank<Top> own;
    if (rank() == 1) return;
    for (const auto& tensor : own.net->far->all()) {
      const auto zeros = torch::zeros_like(tensor);
      EXPECT_TRUE(zeros.is_contiguous());
      EXPECT_FALSE(zeros.any().item<bool>());
      EXPECT_EQ(zeros.sizes(), tensor.sizes());
      EXPECT_EQ(zeros.dtype(), tensor.dtype());
      EXPECT_TRUE(torch::ones_like(tensor, torch::kFloat).all().item<bool>());
      EXPECT_EQ(torch::empty_like(tensor).sizes(), tensor.sizes());
      EXPECT_EQ(tensor.new_zeros({3}).dtype(), tensor.dtype());
    }
    const auto& floats = own.net->far->floats;
    torch::manual_seed(3);
    const auto noise = torch::randn_like(floats);
    torch::manual_seed(3);
    EXPECT_TRUE(torch::equal(noise, torch::randn({kLarge})));
  });
}

TEST(ForeignTensors, AreRefusedWithGradientsToo) {
  on_ranks(2, [] {
    Rank<Top> own;
    if (rank() == 1) return;
    EXPECT_THAT(refusal([&] { torch::ones({4}) * own.net->far->weight; }),
                HasSubstr("parameter far.weight lives on rank 1"));
    EXPECT_THAT(refusal([&] { torch::ones({4}).index({own.net->far->integers}); }),
                HasSubstr("buffer far.integers lives on rank 1"));
  });
}

TEST(ForeignTensors, AComparisonIsRefusedInAStep) {
  on_ranks(2, [] {
    Rank<Top> own;
    auto train = smp::step([&](Tensor x) {
      if (own.net->far->weight.norm().item<double>() > 1) x = x * 2;
      own.model.backward(own.model(x).mean());
    });
    EXPECT_THAT(refused_step<UsageError>(0,
                                         [&] {
                                           train(torch::ones({4, 4}));
                                         }),
                AllOf(HasSubstr("rank 0: parameter far.weight lives on rank 1"),
                      HasSubstr("Call the module that holds it")));
    own.step();
  });
}

TEST(ForeignTensors, KeepTheirFaces) {
  on_ranks(2, [] {
    Rank<Top> own;
    auto whole = Holder();
    const auto before = whole->all();
    const auto after = own.net->far->all();
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(after[i].sizes(), before[i].sizes());
      EXPECT_EQ(after[i].strides(), before[i].strides());
      EXPECT_EQ(after[i].dim(), before[i].dim());
      EXPECT_EQ(after[i].numel(), before[i].numel());
      EXPECT_EQ(after[i].nbytes(), before[i].nbytes());
      EXPECT_EQ(after[i].scalar_type(), before[i].scalar_type());
      EXPECT_EQ(after[i].device(), before[i].device());
      EXPECT_TRUE(after[i].is_cpu());
      EXPECT_EQ(after[i].layout(), before[i].layout());
      EXPECT_EQ(after[i].requires_grad(), before[i].requires_grad());
      EXPECT_EQ(after[i].is_floating_point(), before[i].is_floating_point());
      EXPECT_TRUE(after[i].is_leaf());
      EXPECT_TRUE(after[i].is_contiguous());
      EXPECT_FALSE(after[i].grad().defined());
    }
    std::stringstream printed, expected;
    printed << *own.net->far;
    expected << *whole;
    EXPECT_EQ(printed.str(), expected.str());
    EXPECT_EQ(own.net->parameters().size(), 7u);
    EXPECT_EQ(own.net->buffers().size(), 3u);
  });
}

TEST(ForeignTensors, MayBeFrozenAndTrainedAgain) {
  on_ranks(2, [] {
    Rank<Top> own;
    own.step();
    for (auto& parameter : own.net->parameters()) parameter.requires_grad_(false);
    for (auto& parameter : own.net->parameters()) {
      EXPECT_FALSE(parameter.requires_grad());
      parameter.requires_grad_(true);
    }
    own.net->zero_grad();
    own.step();
  });
}

template <class Optimizer, class Options>
void optimise_everything(bool before) {
  on_ranks(2, [before] {
    torch::manual_seed(1);
    Top net;
    DistributedModel model(net);
    model.set_partition("far", 1);
    if (!before) model.place();
    // Not wrapped: every rank gives it all parameters.
    Optimizer optimizer(net->parameters(), Options(0.1));
    DistributedOptimizer wrapped(model, Optimizer(model.parameters(), Options(0.1)));
    auto train = smp::step([&](Tensor x) {
      auto loss = model(x).pow(2).mean();
      model.backward(loss);
      return loss;
    });
    double last = 0;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      wrapped.zero_grad();
      last = train(torch::ones({4, 4})).reduce_mean().template item<double>();
      torch::nn::utils::clip_grad_value_(net->parameters(), 1.0);
      optimizer.step();
      wrapped.step();
    }
    EXPECT_TRUE(std::isfinite(last));
    for (const auto& parameter : net->parameters()) {
      const bool stepped = optimizer.state().count(parameter.unsafeGetTensorImpl()) != 0;
      EXPECT_EQ(stepped, model.owns(parameter) && parameter.grad().defined());
    }
  });
}

TEST(ForeignTensors, MayBeInAnOptimizer) {
  for (const bool before : {true, false}) {
    optimise_everything<torch::optim::AdamW, torch::optim::AdamWOptions>(before);
  }
}

TEST(ForeignTensors, OfARootThatIsNotRoutedAreNotSavedOrCopied) {
  on_ranks(2, [] {
    Rank<PlainRoot> own;
    own.step();
    const auto named = HasSubstr("lives on rank");
    std::stringstream stream;
    EXPECT_THAT(said([&] { torch::save(own.net->parameters(), stream); }), named);
    EXPECT_THAT(said([&] {
                  for (const auto& item : own.net->named_parameters()) item.value().clone();
                }),
                named);
    EXPECT_THAT(said([&] { torch::save(own.net, stream); }),
                testing::AnyOf(named, HasSubstr("after the model was placed")));
    own.step();
  });
}

TEST(ForeignTensors, AreWrittenByTheirOwner) {
  on_ranks(2, [] {
    Rank<Top> own;
    for (auto& parameter : own.net->parameters()) {
      const at::NoGradGuard no_grad;
      if (own.model.owns(parameter)) parameter.fill_(0.5);
    }
    own.step();
    if (rank() == 1) {
      EXPECT_EQ(own.net->far->weight[0].item<float>(), 0.5);
    }
  });
}

TEST(ForeignTensors, CostNoMemory) {
  on_ranks(2, [] {
    Rank<Top> own;
    const bool holds = rank() == 1;
    EXPECT_EQ(own.net->far->floats.has_storage(), holds);
    EXPECT_EQ(own.net->far->weight.has_storage(), holds);
    EXPECT_EQ(own.net->near->weight.has_storage(), !holds);
  });
}

TEST(ForeignTensors, AHookThatTheBodyRegistersWhereItNeverRunsIsRefused) {
  on_ranks(2, [] {
    Rank<Top> own;
    auto& far = own.net->far->linear->weight;
    int runs = 0;
    far.register_hook([&](const Tensor& gradient) {
      ++runs;
      return gradient * 2;
    });
    own.step();
    EXPECT_EQ(runs, rank() == 0 ? 0 : 2);  // of two microbatches
    auto train = smp::step([&](Tensor x) {
      far.register_hook([](const Tensor& gradient) { return gradient * 2; });
      auto loss = own.model(x).pow(2).mean();
      own.model.backward(loss);
      return loss;
    });
    const auto text = refused_step<UsageError>(0, [&] { train(torch::ones({4, 4})); });
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0: the body of a step registered a hook where it never "
                                      "runs: parameter far.linear.weight lives on rank 1"),
                            HasSubstr("on every rank")));
  });
}

}  // namespace foreign_tensors_test
}  // namespace smp
