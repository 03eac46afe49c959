// Loads before placement have their place in the order of what the program does, and take the
// values of then: with delayed initialisation as without, wherever tensors go.
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "api/two_ranks.h"
#include "checkpoint/model_state_testing.h"
#include "deferred/delayed_tensors.h"

namespace smp::model_state {
namespace load_order_test {

using testing::HasSubstr;

/// One way to run the program below.
struct Way {
  int stages, replicas;
  std::optional<InitOrder> order;  // delayed
  const char* given;               // by whom: "all", "first", "last", "parts", "file"
  std::string text() const {
    return std::to_string(stages) + " stages, " + std::to_string(replicas) + " replicas, " +
           (!order                         ? "eager"
            : *order == InitOrder::kByPath ? "by path"
                                           : "as written") +
           ", " + given;
  }
};

std::string file_of(const Way& way) {
  return testing::TempDir() + "order." + std::to_string(getpid()) + "." +
         std::to_string(way.stages) + ".safetensors";
}

Net build(std::optional<InitOrder> order, std::uint64_t seed) {
  std::optional<delay_param_initialization> delay;
  torch::manual_seed(seed);
  if (order) delay.emplace(*order);
  Net net;
  net->to(torch::kDouble);
  return net;
}

/// The part of `dict` that this rank gives.
StateDict part_of(const StateDict& dict, const std::string& given) {
  StateDict part;
  int number = 0;
  for (const auto& [name, tensor] : dict) {
    const bool mine = given == "all" || (given == "first" && mp_rank() == 0) ||
                      (given == "last" && mp_rank() == mp_size() - 1) ||
                      (given == "parts" && number++ % mp_size() == mp_rank());
    if (mine) part.insert(name, tensor);
  }
  return part;
}

StateDict copy_of(const StateDict& dict) {
  StateDict copy;
  for (const auto& [name, tensor] : dict) copy.insert(name, tensor.clone());
  return copy;
}

/// What the program does with its model; the loads are given.
void run_program(Net& net, const std::function<void(const StateDict&, bool)>& load) {
  torch::NoGradGuard no_grad;
  const auto block = [&](std::size_t i) { return net->blocks[i]->as<BlockImpl>(); };
  net->head->bias.fill_(7);  // the load comes later
  auto all = plain_dict(9);
  load(all, true);
  for (const auto& [name, tensor] : all) Tensor(tensor).zero_();  // the program's again
  torch::nn::init::constant_(net->head->bias, 0.5);
  block(0)->scale.slice(0, 1, 3).mul_(2);
  torch::manual_seed(4);                           // whatever other ranks of this process drew
  block(1)->scale.slice(0, 0, 2).bernoulli_(0.5);  // whose draws are not counted but made
  block(1)->linear->weight.copy_(block(2)->linear->weight);
  load({{"blocks.1.calls", torch::tensor({8, 9}, torch::kLong)},
        {"head.frozen", torch::full({6}, 3, torch::kFloat)}},
       false);
  net->head->frozen.add_(1);
  load({{"blocks.2.linear.bias", torch::full({4}, 5.0, torch::kDouble)}}, false);
  torch::manual_seed(3);
  torch::nn::init::uniform_(block(2)->norm->weight);
}

StateDict expected_of(std::uint64_t seed) {
  auto net = build({}, seed);
  run_program(net,
              [&](const StateDict& dict, bool strict) { load_state_dict(*net, dict, strict); });
  return copy_of(state_dict(*net));
}

void run(const Way& way, std::uint64_t seed, const StateDict& expected) {
  SCOPED_TRACE(way.text());
  Config config;
  config.pipeline_parallel_degree = way.stages;
  config.plan_cache = "off";
  run_local(
      way.stages * way.replicas,
      [&] {
        auto net = build(way.order, seed);
        DistributedModel model(net);
        for (int i = 0; i < 3; ++i) {
          model.set_partition("blocks." + std::to_string(i), (i + 1) % way.stages);
        }
        int number = 0;
        run_program(net, [&](const StateDict& dict, bool strict) {
          if (std::string(way.given) != "file") {
            model.load_state_dict(part_of(dict, way.given), strict);
            return;
          }
          const auto path = file_of(way) + std::to_string(rank()) + std::to_string(number++);
          if (pp_rank() == 0) save_safetensors(dict, path);
          load_safetensors(model, path, strict);
        });
        EXPECT_EQ(deferred::is_delayed(*net), way.order.has_value());
        model.place();
        EXPECT_FALSE(deferred::is_delayed(*net));
        expect_same(model.state_dict(kAllPpRanks), expected);
        if (pp_rank() == 0) {
          for (int i = 0; i < number; ++i) {
            std::filesystem::remove(file_of(way) + std::to_string(rank()) + std::to_string(i));
          }
        }
      },
      config);
}

TEST(LoadOrder, IsThatOfTheProgram) {
  const auto expected = expected_of(5);
  for (const auto order : {std::optional<InitOrder>(), std::optional(InitOrder::kAsWritten)}) {
    for (const char* given : {"all", "first", "last", "parts", "file"}) {
      run({1, 1, order, given}, 5, expected);
      run({3, 1, order, given}, 5, expected);
      run({2, 2, order, given}, 5, expected);
    }
  }
}

/// Random numbers that the program draws after the loads are those of the path.
TEST(LoadOrder, IsThatOfTheProgramByPathToo) {
  StateDict one;
  for (const int stages : {1, 3}) {
    for (const char* given : {"first", "parts"}) {
      on_ranks(stages, [&] {
        auto net = build(InitOrder::kByPath, 5);
        DistributedModel model(net);
        run_program(net, [&](const StateDict& dict, bool strict) {
          model.load_state_dict(part_of(dict, given), strict);
        });
        model.place();
        const auto all = model.state_dict(kAllPpRanks);
        if (one.empty()) one = copy_of(all);
        expect_same(all, one);
      });
    }
  }
  const auto expected = expected_of(5);
  for (const auto& [name, tensor] : expected) {
    if (name == "blocks.2.norm.weight" || name == "blocks.1.scale") continue;
    EXPECT_TRUE(torch::equal(one.at(name), tensor)) << name;
  }
}

TEST(LoadOrder, LeavesWhatIsNotLoadedAsItWas) {
  const StateDict head{{"head.bias", torch::full({6}, 2.0, torch::kDouble)}};
  auto plain = build({}, 8);
  load_state_dict(*plain, head, false);
  const auto expected = copy_of(state_dict(*plain));
  for (const int stages : {1, 3}) {
    on_ranks(stages, [&] {
      DistributedModel model(build(InitOrder::kAsWritten, 8));
      spread(model);
      model.load_state_dict(rank() == 0 ? head : StateDict(), false);
      model.place();
      expect_same(model.state_dict(kAllPpRanks), expected);
    });
  }
}

/// A tensor of a conversion's type, and a buffer that is a view of a parameter.
TEST(LoadOrder, HoldsForCastsAndViews) {
  struct Views : torch::nn::Module {
    Views() {
      weight = register_parameter("weight", torch::randn({4, 3}));
      row = register_buffer("row", weight.detach()[1]);
      half = register_parameter("half", torch::randn({5}).to(torch::kHalf));
    }
    Tensor weight, row, half;
  };
  const auto program = [](Views& net, const std::function<void(const StateDict&)>& load) {
    torch::NoGradGuard no_grad;
    load({{"weight", torch::arange(12, torch::kDouble).reshape({4, 3})},
          {"row", torch::full({3}, -1, torch::kInt)},
          {"half", torch::arange(5, torch::kFloat)}});
    net.row.add_(net.weight[2]);
    net.half.mul_(2);
    net.to(torch::kDouble);
  };
  Views plain;
  program(plain, [&](const StateDict& dict) { load_state_dict(plain, dict); });
  for (const bool delayed : {false, true}) {
    on_ranks(1, [&] {
      std::optional<delay_param_initialization> delay;
      if (delayed) delay.emplace();
      auto net = std::make_shared<Views>();
      delay.reset();
      DistributedModel model(net);
      program(*net, [&](const StateDict& dict) { model.load_state_dict(dict); });
      model.place();
      const auto ours = model.state_dict();
      for (const auto& [name, tensor] : state_dict(plain)) {
        EXPECT_TRUE(torch::equal(ours.at(name), tensor)) << name << ", delayed " << delayed;
        EXPECT_EQ(ours.at(name).scalar_type(), tensor.scalar_type());
      }
    });
  }
}

/// The program's own tensors that were computed from loaded ones.
TEST(LoadOrder, HoldsForTensorsThatAreNotRegistered) {
  on_ranks(1, [] {
    auto net = build(InitOrder::kAsWritten, 5);
    DistributedModel model(net);
    model.load_state_dict(plain_dict(9));
    torch::NoGradGuard no_grad;
    const auto twice = net->head->bias * 2;
    net->head->bias.zero_();
    model.place();
    EXPECT_TRUE(torch::equal(twice + 0, plain_dict(9).at("head.bias") * 2));
    EXPECT_EQ(model.state_dict().at("head.bias").abs().sum().item<double>(), 0);
  });
}

/// Two wrappers of one module, one of which is placed before the other.
TEST(LoadOrder, HoldsForWhatModelsShare) {
  struct Outer : torch::nn::Module {
    explicit Outer(const Net& net) { register_module("net", net.ptr()); }
  };
  on_ranks(2, [] {
    auto net = build(InitOrder::kAsWritten, 5);
    DistributedModel inner(net);
    spread(inner);
    DistributedModel outer(std::make_shared<Outer>(net));
    outer.load_state_dict(with_prefix(plain_dict(9), "net."));
    torch::NoGradGuard no_grad;
    net->head->bias.zero_();
    inner.place();
    auto expected = plain_dict(9);
    expected.at("head.bias").zero_();
    expect_same(inner.state_dict(kAllPpRanks), expected);
  });
}

TEST(LoadOrder, KeepsAFileThatIsReplacedAndNoticesOneThatIsChanged) {
  const auto path = testing::TempDir() + "changed." + std::to_string(getpid()) + ".safetensors";
  for (const bool replaced : {true, false}) {
    save_safetensors(plain_dict(9), path);
    on_ranks(2, [&] {
      DistributedModel model(build(InitOrder::kAsWritten, 5));
      spread(model);
      load_safetensors(model, path);
      if (rank() == 0 && replaced) save_safetensors(plain_dict(10), path);
      if (rank() == 0 && !replaced) {
        // Another program writes other values, without our checksums, into the same file.
        StateDict other;
        for (const auto& [name, tensor] : plain_dict(10)) other.insert(name, tensor);
        const auto beside = path + ".beside";
        save_safetensors(other, beside);
        std::ifstream from(beside, std::ios::binary);
        std::ofstream(path, std::ios::binary | std::ios::trunc) << from.rdbuf();
        std::filesystem::remove(beside);
      }
      if (replaced) {
        model.place();
        expect_same(model.state_dict(kAllPpRanks), plain_dict(9));
        return;
      }
      EXPECT_THAT(refusal([&] { model.place(); }),
                  testing::AnyOf(HasSubstr("has changed between the load and the placement"),
                                 HasSubstr("damaged values of")));
      EXPECT_FALSE(model.partitioned());
    });
  }
  std::filesystem::remove(path);
}

}  // namespace load_order_test
}  // namespace smp::model_state
