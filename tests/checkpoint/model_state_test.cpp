// State dicts of placed models, and optimizer state across numbers of ranks, against plain
// LibTorch.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "api/two_ranks.h"
#include "smp/checkpoint.h"

namespace smp {
namespace model_state_test {

using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("linear", linear);
    register_module("norm", norm);
    register_buffer("scale", scale);
    register_buffer("calls", calls);
  }
  Tensor forward(const Tensor& x) { return norm(linear(x)).tanh() * scale + x; }
  nn::Linear linear{nn::LinearOptions(4, 4)};
  nn::BatchNorm1d norm{nn::BatchNorm1dOptions(4)};
  Tensor scale = torch::rand({4});
  Tensor calls = torch::tensor({3, 4}, torch::kLong);
};
SMP_MODULE(Block);

/// The head reads the table of the first layer: one tensor under two names.
struct TableImpl : torch::nn::Module {
  TableImpl() : weight(register_parameter("weight", torch::randn({6, 4}))) {}
  Tensor forward(const Tensor& x) { return torch::linear(x, weight.t()); }
  Tensor head(const Tensor& x) { return torch::linear(x, weight); }
  Tensor weight;
};
SMP_MODULE(Table, head);

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(Tensor tied) : weight(register_parameter("weight", std::move(tied))) {
    bias = register_parameter("bias", torch::randn({6}));
    frozen = register_parameter("frozen", torch::randn({6}), false);
  }
  Tensor weight, bias, frozen;
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("table", table);
    register_module("blocks", blocks);
    for (int i = 0; i < 3; ++i) blocks->push_back(Block());
    head = register_module("head", std::make_shared<HeadImpl>(table->weight));
  }
  Tensor forward(const Tensor& x) {
    Tensor h = table(x);
    for (auto& block : blocks->children()) h = block->as<BlockImpl>()->forward(h);
    return table->head(h) + head->bias * head->frozen;
  }
  Table table;
  torch::nn::ModuleList blocks;
  std::shared_ptr<HeadImpl> head;
};
SMP_MODULE(Net);

constexpr std::uint64_t kSeed = 5;

Net make_net(std::uint64_t seed = kSeed) {
  torch::manual_seed(seed);
  Net net;
  net->to(torch::kDouble);
  return net;
}

/// All modules on other ranks than their neighbours.
void spread(DistributedModelBase& model, int shift = 0) {
  model.set_partition("", 0);
  for (int i = 0; i < 3; ++i) {
    model.set_partition("blocks." + std::to_string(i), (i + 1 + shift) % size());
  }
}

StateDict plain_dict(std::uint64_t seed = kSeed) {
  StateDict copies;
  for (const auto& [name, tensor] : state_dict(*make_net(seed)))
    copies.insert(name, tensor.clone());
  return copies;
}

void expect_same(const StateDict& ours, const StateDict& expected) {
  ASSERT_EQ(ours.names(), expected.names());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(torch::equal(ours.at(name), tensor)) << name;
  }
}

TEST(StateDictOfModule, HasPyTorchsNamesInItsOrder) {
  const auto names = state_dict(*make_net()).names();
  EXPECT_THAT(std::vector<std::string>(names.begin(), names.begin() + 10),
              ElementsAre("table.weight", "blocks.0.scale", "blocks.0.calls",
                          "blocks.0.linear.weight", "blocks.0.linear.bias", "blocks.0.norm.weight",
                          "blocks.0.norm.bias", "blocks.0.norm.running_mean",
                          "blocks.0.norm.running_var", "blocks.0.norm.num_batches_tracked"));
  EXPECT_THAT(std::vector<std::string>(names.end() - 3, names.end()),
              ElementsAre("head.weight", "head.bias", "head.frozen"));
}

TEST(StateDictOfModule, LoadsAsPyTorchDoes) {
  auto net = make_net(1);
  const auto values = plain_dict();
  EXPECT_TRUE(load_state_dict(*net, values).missing_keys.empty());
  expect_same(state_dict(*net), values);

  auto less = values;
  less.erase("head.weight");  // table.weight stands for it
  less.insert("extra", torch::ones({1}));
  EXPECT_THAT(refusal([&] { load_state_dict(*net, less); }), HasSubstr("unexpected: extra"));
  less.erase("blocks.1.calls");
  less.erase("head.bias");
  EXPECT_THAT(refusal([&] { load_state_dict(*net, less); }),
              HasSubstr("\n  missing: blocks.1.calls, head.bias\n  unexpected: extra\n"));
  const auto result = load_state_dict(*net, less, /*strict=*/false);
  EXPECT_THAT(result.missing_keys, ElementsAre("blocks.1.calls", "head.bias"));
  EXPECT_THAT(result.unexpected_keys, ElementsAre("extra"));
}

TEST(StateDictOfModule, NamesWhatDoesNotFitAndLoadsNothing) {
  auto net = make_net(1);
  auto values = plain_dict();
  values.erase("blocks.0.linear.bias");
  values.insert("blocks.0.linear.bias", torch::ones({5}));
  values.erase("blocks.2.calls");
  values.insert("blocks.2.calls", torch::ones({2}));
  const auto text = refusal([&] { load_state_dict(*net, values, false); });
  EXPECT_THAT(text, HasSubstr("shape of blocks.0.linear.bias: [5], but the model has [4]"));
  expect_same(state_dict(*net), plain_dict(1));
}

TEST(StateDictOfModule, ConvertsDtypesAndRefusesTwoValuesForOneTensor) {
  auto net = make_net(1);
  StateDict single;
  for (const auto& [name, tensor] : plain_dict()) {
    single.insert(name, tensor.is_floating_point() ? tensor.to(torch::kFloat) : tensor);
  }
  load_state_dict(*net, single);
  EXPECT_EQ(net->head->bias.scalar_type(), torch::kDouble);
  EXPECT_TRUE(torch::equal(net->head->bias, single.at("head.bias").to(torch::kDouble)));
  auto two = plain_dict();
  two.erase("head.weight");
  two.insert("head.weight", torch::zeros({6, 4}, torch::kDouble));
  EXPECT_THAT(refusal([&] { load_state_dict(*net, two); }),
              HasSubstr("one tensor under the names table.weight and head.weight"));
  load_state_dict(*net, two, false);
  EXPECT_EQ(net->table->weight.abs().sum().item<double>(), 0);
}

TEST(ModelState, IsGatheredFromItsOwners) {
  const auto expected = plain_dict();
  for (const int ranks : {1, 2, 4}) {
    on_ranks(ranks, [&] {
      auto net = make_net();
      DistributedModel model(net);
      spread(model);
      for (const bool placed : {false, true}) {
        if (placed) model.place();
        const auto on_first = model.state_dict();
        if (pp_rank() == 0) {
          expect_same(on_first, expected);
          EXPECT_TRUE(on_first.at("head.weight").is_same(on_first.at("table.weight")));
        } else {
          EXPECT_TRUE(on_first.empty());
        }
        EXPECT_EQ(model.state_dict(size() - 1).empty(), pp_rank() != size() - 1);
        expect_same(model.state_dict(kAllPpRanks), expected);
      }
      std::size_t locals = 0;
      for (const auto& [name, tensor] : model.local_state_dict()) {
        EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << name;
        ++locals;
      }
      EXPECT_LE(locals, expected.size());
      EXPECT_EQ(locals == expected.size(), ranks == 1);
    });
  }
}

TEST(ModelState, IsACopy) {
  on_ranks(2, [] {
    DistributedModel model(make_net());
    spread(model);
    model.place();
    const auto dict = model.state_dict(kAllPpRanks);
    torch::NoGradGuard no_grad;
    for (auto& parameter : model.local_parameters()) parameter.zero_();
    expect_same(dict, plain_dict());
  });
}

TEST(ModelState, IsLoadedWhereverTheDictIs) {
  const auto values = plain_dict(9);
  for (const bool placed : {false, true}) {
    for (const char* given : {"all", "first", "last", "parts"}) {
      SCOPED_TRACE(std::string(given) + (placed ? " after" : " before"));
      on_ranks(3, [&] {
        DistributedModel model(make_net());
        spread(model);
        if (placed) model.place();
        const std::string who(given);
        StateDict dict;
        int number = 0;
        for (const auto& [name, tensor] : values) {
          const bool mine = who == "all" || (who == "first" && rank() == 0) ||
                            (who == "last" && rank() == 2) ||
                            (who == "parts" && number % 3 == rank());
          if (mine) dict.insert(name, tensor);
          ++number;
        }
        const auto result = model.load_state_dict(dict);
        EXPECT_TRUE(result.missing_keys.empty() && result.unexpected_keys.empty());
        model.place();
        expect_same(model.state_dict(kAllPpRanks), values);
      });
    }
  }
}

TEST(ModelState, IsRefusedOnEveryRankWithOneText) {
  const auto values = plain_dict(9);
  on_ranks(3, [&] {
    DistributedModel model(make_net());
    spread(model);
    model.place();
    auto dict = rank() == 1 ? values : StateDict();
    if (rank() == 1) {
      dict.erase("head.bias");
      dict.insert("odd", torch::ones({1}));
    }
    const auto text = refusal([&] { model.load_state_dict(dict); });
    EXPECT_THAT(text, HasSubstr("missing: head.bias\n  unexpected: odd"));
    EXPECT_THAT(model.load_state_dict(dict, false).missing_keys, ElementsAre("head.bias"));

    auto scaled = values;
    if (rank() == 2) {
      scaled.erase("blocks.0.scale");
      scaled.insert("blocks.0.scale", torch::ones({3}));
    }
    EXPECT_THAT(refusal([&] { model.load_state_dict(scaled); }),
                HasSubstr("ranks 0 and 2 have different tensors \"blocks.0.scale\""));
    auto sparse = values;
    if (rank() == 2) {
      sparse.erase("blocks.0.scale");
      sparse.insert("blocks.0.scale", torch::ones({4}).to_sparse());
    }
    EXPECT_THAT(refusal([&] { model.load_state_dict(sparse); }),
                HasSubstr("rank 2: load_state_dict: blocks.0.scale is no dense tensor"));
    EXPECT_THAT(refusal([&] { model.state_dict(7); }), HasSubstr("there are 3 stages"));
    EXPECT_THAT(refusal([&] { state_dict(model.base_module()); }),
                HasSubstr("lives on another rank"));
  });
}

TEST(ModelState, ThatDiffersBetweenRanksIsRefusedBeforePlacement) {
  on_ranks(2, [] {
    DistributedModel model(make_net());
    EXPECT_THAT(refusal([&] { model.load_state_dict(plain_dict(static_cast<unsigned>(rank()))); }),
                HasSubstr("ranks 0 and 1 have different values of \""));
    expect_same(model.state_dict(kAllPpRanks), plain_dict());
  });
}

TEST(ModelState, FillsADelayedModelWhenItIsPlaced) {
  const auto values = plain_dict(9);
  on_ranks(3, [&] {
    Net net = [] {
      const delay_param_initialization delay;
      return make_net();
    }();
    DistributedModel model(net);
    spread(model);
    EXPECT_THAT(refusal([&] { model.state_dict(); }), HasSubstr("has none yet"));
    model.load_state_dict(rank() == 0 ? values : StateDict());
    model.place();
    expect_same(model.state_dict(kAllPpRanks), values);
  });
}

TEST(ModelState, CannotBeSavedOrLoadedInsideAStep) {
  on_ranks(2, [] {
    DistributedModel model(make_net());
    auto run = step([&](const Tensor& x) {
      EXPECT_THAT(refusal([&] { model.state_dict(); }), HasSubstr("state_dict inside a step"));
      EXPECT_THAT(refusal([&] { model.load_state_dict({}); }), HasSubstr("inside a step"));
      return model(x);
    });
    run(torch::ones({4, 6}, torch::kDouble));
  });
}

TEST(ModelFile, IsWrittenAndReadByRankZeroAlone) {
  const auto path = testing::TempDir() + "model." + std::to_string(getpid()) + ".safetensors";
  const auto expected = plain_dict();
  for (const int ranks : {1, 3}) {
    on_ranks(ranks, [&] {
      DistributedModel model(make_net());
      spread(model);
      model.place();
      save_safetensors(model, path, {{"epoch", "3"}});
    });
    const auto dict = load_safetensors(path);
    EXPECT_EQ(dict.metadata.at("epoch"), "3");
    EXPECT_EQ(dict.size(), expected.size());
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(torch::equal(dict.at(name), tensor));
    on_ranks(ranks == 1 ? 4 : 2, [&] {
      DistributedModel model(make_net(77));
      spread(model, 1);
      load_safetensors(model, path);
      model.place();
      load_safetensors(model, path);
      expect_same(model.state_dict(kAllPpRanks), expected);
    });
  }
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    spread(model);
    model.place();
    EXPECT_THAT(refusal<ResourceError>([&] { save_safetensors(model, "/nowhere/x"); }),
                HasSubstr("cannot write /nowhere/x: No such file"));
    EXPECT_THAT(refusal([&] { load_safetensors(model, "/nowhere/x"); }),
                HasSubstr("cannot read /nowhere/x: No such file"));
    std::ofstream(path, std::ios::app) << "x";
    EXPECT_THAT(refusal([&] { load_safetensors(model, path); }), HasSubstr("damaged safetensors"));
    expect_same(model.state_dict(kAllPpRanks), expected);
  });
  std::filesystem::remove(path);
}

// ---- training that goes on ---------------------------------------------------------------------

Tensor batch(int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
  return torch::randn({4, 6}, generator, torch::kDouble);
}
Tensor loss_of(const Tensor& output) { return output.square().mean(); }

/// Two groups, so that options of each are put back.
template <class Optimizer, class Options>
Optimizer make_optimizer(std::vector<Tensor> parameters, const Options& options) {
  std::vector<Tensor> some(parameters.begin(), parameters.begin() + 3);
  parameters.erase(parameters.begin(), parameters.begin() + 3);
  auto slow = std::make_unique<Options>(options);
  slow->set_lr(options.get_lr() / 3);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(some, std::move(slow));
  groups.emplace_back(parameters, std::make_unique<Options>(options));
  return Optimizer(groups, options);
}

void decay(std::vector<torch::optim::OptimizerParamGroup>& groups) {
  for (auto& group : groups) group.options().set_lr(group.options().get_lr() * 0.9);
}

template <class Optimizer, class Options>
StateDict train_plain(const Options& options, int steps) {
  auto net = make_net();
  std::vector<Tensor> unique;
  for (const auto& parameter : net->parameters()) {
    if (std::none_of(unique.begin(), unique.end(), [&](auto& t) { return t.is_same(parameter); })) {
      unique.push_back(parameter);
    }
  }
  auto optimizer = make_optimizer<Optimizer>(unique, options);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (const auto& part : batch(step).tensor_split(2)) {
      (loss_of(net->forward(part)) * 0.5).backward();
    }
    optimizer.step();
    decay(optimizer.param_groups());
  }
  return state_dict(*net);
}

struct Saved {
  StateDict model;
  StateDict optimizer;
};

/// Steps `begin` to `end` on `ranks` ranks, from what was saved if anything was.
template <class Optimizer, class Options>
Saved train_ours(const Options& options, int ranks, int begin, int end, const Saved& from) {
  Saved saved;
  on_ranks(ranks, [&] {
    DistributedModel model(make_net(begin == 0 ? kSeed : 99));
    spread(model, begin);
    DistributedOptimizer optimizer(model, make_optimizer<Optimizer>(model.parameters(), options));
    auto run = step([&](const Tensor& x) {
      auto loss = loss_of(model(x));
      model.backward(loss);
      return loss;
    });
    if (begin > 0) {
      model.load_state_dict(rank() == 0 ? from.model : StateDict());
      if (begin % 2 == 0) model.place();
      for (auto& group : optimizer.param_groups()) group.options().set_lr(123);
      load_optimizer_state_dict(model, optimizer, rank() == 0 ? from.optimizer : StateDict());
    }
    for (int step = begin; step < end; ++step) {
      optimizer.zero_grad();
      run(batch(step));
      optimizer.step();
      decay(optimizer.param_groups());
    }
    auto model_dict = model.state_dict();
    auto optimizer_dict = optimizer_state_dict(model, optimizer);
    if (rank() == 0) saved = {std::move(model_dict), std::move(optimizer_dict)};
  });
  return saved;
}

template <class Optimizer, class Options>
void expect_training_goes_on(const Options& options) {
  const auto expected = train_plain<Optimizer>(options, 6);
  for (const auto& [before, after, save_at] :
       std::vector<std::array<int, 3>>{{1, 4, 3}, {3, 2, 4}, {4, 1, 2}}) {
    SCOPED_TRACE(testing::Message() << before << " ranks, then " << after);
    auto saved = train_ours<Optimizer>(options, before, 0, save_at, {});
    const auto path = testing::TempDir() + "optimizer." + std::to_string(getpid());
    save_safetensors(saved.optimizer, path);
    saved.optimizer = load_safetensors(path);
    std::filesystem::remove(path);
    const auto ours = train_ours<Optimizer>(options, after, save_at, 6, saved).model;
    ASSERT_EQ(ours.names(), expected.names());
    for (const auto& [name, tensor] : expected) {
      EXPECT_LE((ours.at(name) - tensor).abs().max().template item<double>(), 1e-12) << name;
    }
  }
}

TEST(OptimizerState, OfSgdWithMomentum) {
  expect_training_goes_on<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}
TEST(OptimizerState, OfAdam) {
  expect_training_goes_on<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
}
TEST(OptimizerState, OfAdamW) {
  expect_training_goes_on<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
}
TEST(OptimizerState, OfAdagrad) {
  expect_training_goes_on<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1).lr_decay(0.1));
}
TEST(OptimizerState, OfRmsprop) {
  expect_training_goes_on<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
}

TEST(OptimizerState, HasNamesAndIsRefusedByAnother) {
  const auto saved = train_ours<torch::optim::Adam>(torch::optim::AdamOptions(0.01), 2, 0, 1, {});
  EXPECT_EQ(saved.optimizer.at("optimizer.Adam").item<std::int64_t>(), 2);
  EXPECT_EQ(saved.optimizer.at("state.blocks.1.linear.weight.step").item<std::int64_t>(), 1);
  EXPECT_EQ(saved.optimizer.at("state.table.weight.exp_avg").sizes(), (c10::IntArrayRef{6, 4}));
  EXPECT_NEAR(saved.optimizer.at("param_groups.1.lr").item<double>(), 0.009, 1e-15);
  EXPECT_FALSE(saved.optimizer.contains("state.head.frozen.step"));
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    spread(model);
    const torch::optim::AdamOptions options(0.01);
    DistributedOptimizer adamw(model, torch::optim::AdamW(model.parameters(), 0.01));
    EXPECT_THAT(refusal([&] { load_optimizer_state_dict(model, adamw, saved.optimizer); }),
                HasSubstr("no \"optimizer.AdamW\""));
    DistributedOptimizer one(model, torch::optim::Adam(model.parameters(), 0.01));
    EXPECT_THAT(refusal([&] { load_optimizer_state_dict(model, one, saved.optimizer); }),
                HasSubstr("the dict has 2 groups of parameters, the optimizer 1"));
    DistributedOptimizer two(model,
                             make_optimizer<torch::optim::Adam>(model.parameters(), options));
    auto odd = saved.optimizer;
    odd.insert("state.nobody.exp_avg", torch::ones({1}));
    odd.erase("state.table.weight.exp_avg");
    odd.insert("state.table.weight.exp_avg", torch::ones({1}));
    const auto text = refusal([&] { load_optimizer_state_dict(model, two, odd); });
    EXPECT_THAT(text, HasSubstr("unexpected: state.nobody.exp_avg"));
    EXPECT_THAT(text,
                HasSubstr("shape of state.table.weight.exp_avg: [1], but it must have [6, 4]"));
    load_optimizer_state_dict(model, two, saved.optimizer);
  });
}

}  // namespace model_state_test
}  // namespace smp
