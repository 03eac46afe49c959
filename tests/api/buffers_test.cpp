// Buffers are parameters' equals (docs/design.md, Buffers): what is read has the values of one
// process wherever it is read, running statistics of plain layers are committed in program order,
// and a copy that is not what its owner has is refused by name.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <map>

#include "api/two_ranks.h"

namespace smp {
namespace buffers_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kMicrobatches = 4;
constexpr int kSteps = 3;

Tensor batch(int step) {
  return torch::linspace(-1 - step, 2, 16 * 4, torch::kDouble).sin().reshape({16, 4});
}

/// Of float tensors: Module::to() would make integers float64 too.
void widen(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  const auto each = [](const std::vector<Tensor>& tensors) {
    for (const auto& tensor : tensors) {
      if (tensor.defined() && tensor.scalar_type() == torch::kFloat) {
        tensor.set_data(tensor.to(torch::kDouble));
      }
    }
  };
  each(module.parameters());
  each(module.buffers());
}

/// Parameters and buffers after training, by name; and the losses of all steps.
struct Trained {
  std::map<std::string, Tensor> tensors;
  std::vector<double> losses;
};

/// Plain LibTorch: microbatch after microbatch.
template <class Net>
Trained train_plainly(Net net) {
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double loss = 0;
    for (const auto& x : batch(step).chunk(kMicrobatches)) {
      const auto own = net->forward(x).pow(2).mean() / kMicrobatches;
      torch::autograd::backward({own});
      loss += own.template item<double>();
    }
    optimizer.step();
    trained.losses.push_back(loss);
  }
  for (const auto& item : net->named_parameters()) trained.tensors[item.key()] = item.value();
  for (const auto& item : net->named_buffers()) trained.tensors[item.key()] = item.value();
  return trained;
}

/// On `ranks` ranks, with `pins` modulo their number; what a rank owns is compared there.
template <class Net>
void expect_trained(const std::function<Net()>& make, const std::map<std::string, int>& pins,
                    bool skip_tracing = false, int most_ranks = 4) {
  torch::manual_seed(2);
  const auto expected = train_plainly(make());
  for (int ranks = 1; ranks <= most_ranks; ++ranks) {
    Config config;
    config.microbatches = kMicrobatches;
    config.plan_cache = "off";
    config.skip_tracing = skip_tracing;
    run_local(
        ranks,
        [&] {
          torch::manual_seed(2);
          auto net = make();
          DistributedModel model(net);
          for (const auto& [path, stage] : pins) model.set_partition(path, stage % size());
          DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.05));
          auto train = smp::step([&](Tensor x) {
            auto loss = model(x).pow(2).mean();
            model.backward(loss);
            return loss;
          });
          for (int step = 0; step < kSteps; ++step) {
            optimizer.zero_grad();
            const auto loss = train(batch(step)).reduce_mean().template item<double>();
            optimizer.step();
            EXPECT_NEAR(loss, expected.losses[step], 1e-12) << ranks << " ranks, step " << step;
          }
          auto own = model.local_named_parameters();
          for (auto& item : model.local_named_buffers()) own.push_back(item);
          for (const auto& [name, tensor] : own) {
            EXPECT_TRUE(at::allclose(tensor.to(torch::kDouble),
                                     expected.tensors.at(name).to(torch::kDouble), 1e-12, 1e-12))
                << name << " on " << ranks << " ranks:\n"
                << tensor << "\nand in one process:\n"
                << expected.tensors.at(name);
          }
        },
        config, {.seed = static_cast<std::uint64_t>(ranks)});
  }
}

// ---- reads -------------------------------------------------------------------------------------

// Registers buffers of all types, which its parent and the body of the step read.
struct TablesImpl : torch::nn::Module {
  explicit TablesImpl(std::int64_t large)
      : linear(register_module("linear", nn::Linear(4, 4))),
        positions(register_buffer("positions", torch::arange(4).expand({1, -1}))),
        mask(register_buffer("mask", torch::arange(4) > 1)),
        scale(register_buffer("scale", torch::linspace(1, 2, 4, torch::kDouble))),
        turn(register_buffer("turn", torch::polar(torch::ones({4}, torch::kDouble),
                                                  torch::linspace(0, 1, 4, torch::kDouble)))),
        half(register_buffer("half", torch::linspace(0, 1, 4).to(torch::kHalf))),
        big(register_buffer("big", torch::linspace(1, 2, large, torch::kDouble))),
        nothing(register_buffer("nothing", Tensor())) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) { return linear(x) * scale; }
  nn::Linear linear;
  Tensor positions, mask, scale, turn, half, big, nothing;
};
SMP_MODULE(Tables);

struct ReaderImpl : torch::nn::Module {
  explicit ReaderImpl(std::int64_t large)
      : tables(register_module("tables", Tables(large))),
        last(register_module("last", nn::Linear(4, 4))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) {
    auto y = tables(x).masked_fill(tables->mask, 0.5);
    y = y.index_select(1, tables->positions.squeeze(0).flip(0)) * tables->scale;
    y = y + torch::real(tables->turn) + tables->half;
    if (tables->scale[3].item<double>() > 1.5) y = y * 1.5;  // NaN > 1.5 is false
    y = y * tables->scale.accessor<double, 1>()[1];
    if (!tables->nothing.defined()) y = y + tables->big[-1];
    return last(y);
  }
  Tables tables;
  nn::Linear last;
};
SMP_MODULE(Reader);

TEST(Buffers, AreReadByAnyModule) {
  expect_trained<Reader>([] { return Reader(8); }, {{"tables", 1}, {"last", 2}});
}

TEST(Buffers, AreReadWithoutATrialToo) {
  expect_trained<Reader>([] { return Reader(8); }, {{"tables", 1}, {"last", 2}}, true);
}

TEST(Buffers, ThatAreLargeLiveWithTheirReader) {
  expect_trained<Reader>([] { return Reader(9000); }, {{"last", 1}}, false, 2);
}

TEST(Buffers, ThatAreLargeAndPinnedElsewhereAreRefusedBeforeTheFirstStep) {
  on_ranks(2, [] {
    Reader net(9000);
    DistributedModel model(net);
    model.set_partition("tables", 1);
    auto train = smp::step([&](Tensor x) { model.backward(model(x).mean()); });
    EXPECT_THAT(refusal([&] { train(batch(0)); }),
                AllOf(HasSubstr("the buffer tables.big of \"tables\""), HasSubstr("64 KiB"),
                      HasSubstr("place both there")));
  });
}

// Blocks that share one table, which each registered itself.
struct SharerImpl : torch::nn::Module {
  explicit SharerImpl(const Tensor& table)
      : linear(register_module("linear", nn::Linear(4, 4))),
        table(register_buffer("table", table)) {}
  Tensor forward(const Tensor& x) { return linear(x) * table.slice(0, 0, 4); }
  nn::Linear linear;
  Tensor table;
};
SMP_MODULE(Sharer);

struct SharersImpl : torch::nn::Module {
  SharersImpl() : SharersImpl(torch::linspace(0, 1, 9000, torch::kDouble)) {}
  explicit SharersImpl(const Tensor& table)
      : first(register_module("first", Sharer(table))),
        second(register_module("second", Sharer(table))),
        third(register_module("third", Sharer(table.slice(0, 4, 9000)))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) { return third(second(first(x))); }
  Sharer first, second, third;
};
SMP_MODULE(Sharers);

TEST(Buffers, MayBeHeldBySeveralModules) {
  expect_trained<Sharers>([] { return Sharers(); }, {{"first", 1}, {"second", 2}, {"third", 3}});
}

// ---- writes ------------------------------------------------------------------------------------

// Counts its calls in a buffer that others may look at.
struct CounterImpl : torch::nn::Module {
  CounterImpl()
      : linear(register_module("linear", nn::Linear(4, 4))),
        calls(register_buffer("calls", torch::zeros({}, torch::kLong))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) {
    if (!is_tracing()) calls.add_(1);
    return linear(x);
  }
  nn::Linear linear;
  Tensor calls;
};
SMP_MODULE(Counter);

struct LookerImpl : torch::nn::Module {
  LookerImpl() : counter(register_module("counter", Counter())) {}
  Tensor forward(const Tensor& x) {
    auto y = counter(x);
    if (look) y = y * counter->calls;
    return y;
  }
  Counter counter;
  bool look = false;
};
SMP_MODULE(Looker);

TEST(Buffers, ThatNobodyElseReadsMayChange) {
  expect_trained<Looker>([] { return Looker(); }, {{"counter", 1}});
}

/// The trial run did not show that it is written.
TEST(Buffers, ThatChangedElsewhereAreNotReadUnseen) {
  for (const int looks_from : {0, 1}) {
    on_ranks(2, [looks_from] {
      Looker net;
      DistributedModel model(net);
      model.set_partition("counter", 1);
      auto train = smp::step([&](Tensor x) {
        auto loss = model(x).mean();
        model.backward(loss);
      });
      for (int step = 0; step < looks_from; ++step) train(batch(step));
      net->look = true;
      EXPECT_THAT(
          refused_step<UsageError>(0, [&] { train(batch(0)); }),
          AllOf(HasSubstr("rank 0: buffer counter.calls lives on rank 1"), HasSubstr("one rank")));
      net->look = false;
      train(batch(0));
      if (rank() == 0) {
        EXPECT_THAT(refusal([&] { static_cast<void>(net->counter->calls.item<int>()); }),
                    HasSubstr("buffer counter.calls lives on rank 1 (which changed it)"));
      }
    });
  }
}

TEST(Buffers, MayBeChangedOnAllRanksAlike) {
  on_ranks(2, [] {
    torch::manual_seed(2);
    Reader net(8);
    DistributedModel model(net);
    model.set_partition("tables", 1);
    auto train = smp::step([&](Tensor x) { return model(x).mean(); });
    torch::manual_seed(2);
    Reader plain(8);
    for (int step = 0; step < kSteps; ++step) {
      const at::NoGradGuard no_grad;
      const auto loss = train(batch(0)).reduce_mean();
      EXPECT_NEAR(loss.item<double>(), plain->forward(batch(0)).mean().item<double>(), 1e-12);
      for (auto& tables : {net->tables, plain->tables}) tables->scale.mul_(1.1);
    }
  });
}

TEST(Buffers, ThatAreLoadedAreLoadedIntoTheirCopiesToo) {
  on_ranks(2, [] {
    torch::manual_seed(2);
    Reader net(8);
    DistributedModel model(net);
    model.set_partition("tables", 1);
    auto train = smp::step([&](Tensor x) { return model(x).mean(); });
    const at::NoGradGuard no_grad;
    train(batch(0));
    auto dict = model.state_dict(kAllPpRanks);
    Reader plain(8);
    load_state_dict(*plain, dict);
    plain->tables->scale.mul_(3);
    model.load_state_dict(state_dict(*plain));
    for (int step = 0; step < 2; ++step) {
      EXPECT_NEAR(train(batch(0)).reduce_mean().item<double>(),
                  plain->forward(batch(0)).mean().item<double>(), 1e-12);
    }
  });
}

TEST(Buffers, OfAnotherRankThatOnlyTheReaderChangesAreRefused) {
  on_ranks(2, [] {
    Reader net(8);
    DistributedModel model(net);
    model.set_partition("tables", 1);
    auto train = smp::step([&](Tensor x) { model.backward(model(x).mean()); });
    train(batch(0));
    if (rank() == 0) net->tables->scale.mul_(2);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(batch(0)); }),
                HasSubstr("rank 0: buffer tables.scale lives on rank 1"));
  });
}

TEST(Buffers, AreOwnedByOneRankEach) {
  on_ranks(2, [] {
    Reader net(8);
    DistributedModel model(net);
    model.set_partition("tables", 1);
    model.place();
    EXPECT_EQ(model.owns(net->tables->scale), rank() == 1);
    EXPECT_EQ(model.local_named_buffers().size(), rank() == 1 ? 6u : 0u);
    EXPECT_EQ(net->tables->scale.sum().item<double>(), 6);
  });
}

// ---- running statistics of plain layers --------------------------------------------------------

// Plain layers inside a routed block, with a module elsewhere between their calls.
struct NormBlockImpl : torch::nn::Module {
  explicit NormBlockImpl(std::optional<double> momentum)
      : inner(register_module("inner", nn::Linear(4, 4))),
        norm(register_module(
            "norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).momentum(momentum)))),
        frozen(register_module("frozen", torch::nn::BatchNorm1d(4))),
        stack(register_module(
            "stack", torch::nn::Sequential(
                         torch::nn::Linear(4, 4),
                         torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).momentum(0.4))))),
        instance(register_module(
            "instance", torch::nn::InstanceNorm1d(
                            torch::nn::InstanceNorm1dOptions(2).track_running_stats(true)))) {
    frozen->eval();
  }
  Tensor forward(const Tensor& x) {
    auto y = inner(norm(x) + 0.1 * x).tanh();
    y = frozen(norm(y * 2 + x));
    y = y + inner(instance(y.reshape({-1, 2, 2})).reshape({-1, 4}));
    return stack->forward(y) + x;
  }
  nn::Linear inner;
  torch::nn::BatchNorm1d norm, frozen;
  torch::nn::Sequential stack;
  torch::nn::InstanceNorm1d instance;
};
SMP_MODULE(NormBlock);

struct NormsImpl : torch::nn::Module {
  NormsImpl()
      : first(register_module("first", NormBlock(0.3))),
        second(register_module("second", NormBlock(std::nullopt))),
        own(register_module("own", torch::nn::BatchNorm1d(4))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) { return first(second(own(first(own(x))) + x)); }
  NormBlock first, second;
  torch::nn::BatchNorm1d own;
};
SMP_MODULE(Norms);
struct PlainNormsImpl : NormsImpl {};
TORCH_MODULE(PlainNorms);

const std::map<std::string, int> kNormPins{
    {"first", 1}, {"first.inner", 2}, {"second", 3}, {"second.inner", 0}};

TEST(Buffers, OfPlainNormalisationsInARoutedBlockAreCommittedInProgramOrder) {
  expect_trained<Norms>([] { return Norms(); }, kNormPins);
}

TEST(Buffers, OfPlainNormalisationsInAPlainRootToo) {
  expect_trained<PlainNorms>([] { return PlainNorms(); }, kNormPins);
}

// A block that calls itself through another module.
struct RecursiveImpl : torch::nn::Module {
  RecursiveImpl()
      : norm(register_module("norm", torch::nn::BatchNorm1d(4))),
        linear(register_module("linear", nn::Linear(4, 4))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x, int depth);
  torch::nn::BatchNorm1d norm;
  nn::Linear linear;
  std::function<Tensor(const Tensor&, int)> again;
};
SMP_MODULE(Recursive);
Tensor RecursiveImpl::forward(const Tensor& x, int depth) {
  auto y = linear(norm(x));
  if (depth > 0) y = again(y, depth - 1);
  return norm(y * (1 + depth));
}

struct RecursionImpl : torch::nn::Module {
  RecursionImpl() : block(register_module("block", Recursive())) {
    block->again = [this](const Tensor& x, int depth) { return block(x, depth); };
  }
  Tensor forward(const Tensor& x) { return block(x, 2); }
  Recursive block;
};
SMP_MODULE(Recursion);

TEST(Buffers, OfANormalisationInABlockThatCallsItselfAreThoseOfOneProcess) {
  expect_trained<Recursion>([] { return Recursion(); }, {{"block", 1}, {"block.linear", 2}});
}

// ---- views of parameters -----------------------------------------------------------------------

struct ViewerImpl : torch::nn::Module {
  explicit ViewerImpl(const Tensor& of)
      : view(register_buffer("view", of.detach().slice(0, 0, 4))),
        linear(register_module("linear", nn::Linear(4, 4))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) { return linear(x) * view; }
  Tensor view;
  nn::Linear linear;
};
SMP_MODULE(Viewer);

struct ViewsImpl : torch::nn::Module {
  ViewsImpl()
      : first(register_module("first", nn::Linear(4, 4))),
        holder(register_module("holder", make_holder())),
        viewer(register_module("viewer", Viewer(holder->weight))) {
    widen(*this);
  }
  struct HolderImpl : torch::nn::Module {
    HolderImpl() : weight(register_parameter("weight", torch::linspace(1, 2, 4, torch::kDouble))) {}
    Tensor forward(const Tensor& x) { return x * weight; }
    Tensor weight;
  };
  static std::shared_ptr<Routed<HolderImpl>> make_holder() { return make_module<HolderImpl>(); }
  Tensor forward(const Tensor& x) { return viewer(holder->forward(first(x))); }
  nn::Linear first;
  std::shared_ptr<Routed<HolderImpl>> holder;
  Viewer viewer;
};
SMP_MODULE(Views);

TEST(Buffers, ThatAreViewsOfAParameterLiveWithIt) {
  expect_trained<Views>([] { return Views(); }, {{"first", 1}, {"viewer", 2}});
  on_ranks(2, [] {
    Views net;
    DistributedModel model(net);
    model.set_partition("holder", 0);
    model.set_partition("viewer", 1);
    EXPECT_THAT(refusal([&] { model.place(); }), HasSubstr("holder.weight"));
  });
}

}  // namespace buffers_test
}  // namespace smp
