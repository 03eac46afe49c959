// What the partitioner is told of weights and buffers: memory counts once, whoever names it.
#include "api/model/describe_model.h"

#include <gmock/gmock.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <vector>

#include "smp/smp.h"
#include "support/refusal.h"

namespace smp {
namespace describe_model_test {

using at::Tensor;

struct PartImpl : torch::nn::Module {
  PartImpl() : weight(register_parameter("weight", torch::zeros({4, 8}))) {}
  Tensor forward(const Tensor& x) { return x * weight; }
  Tensor weight;
};
SMP_MODULE(Part);

TEST(DescribeModel, CountsMemoryOnceThatTwoParametersName) {
  struct Net : torch::nn::Module {
    Net() : one(register_module("one", Part())), two(register_module("two", Part())) {
      two->weight.set_data(one->weight.detach().view({8, 4}));
    }
    Part one, two;
  } net;
  const auto tree = describe_model(net).tree;
  ASSERT_EQ(tree.parameters.size(), 2u) << "they have gradients of their own";
  EXPECT_EQ(tree.total_bytes(), 4 * 32);
  EXPECT_EQ(tree.parameters[1].elements, 0);
  EXPECT_EQ(tree.parameters[1].gradient_bytes, 4 * 32);
  EXPECT_THAT(tree.nodes[2].viewed, testing::ElementsAre(0)) << "and go together";
}

TEST(DescribeModel, CountsPartsOfOneMemoryEach) {
  struct Net : torch::nn::Module {
    Net() {
      const auto flat = torch::zeros({10});
      register_parameter("first", flat.slice(0, 0, 6));
      register_parameter("second", flat.slice(0, 6, 10));
    }
  } net;
  const auto tree = describe_model(net).tree;
  EXPECT_EQ(tree.parameters[0].bytes, 24);
  EXPECT_EQ(tree.parameters[1].bytes, 16);
}

TEST(DescribeModel, TiesOnlyPartsOfOneMemoryThatMeet) {
  struct Net : torch::nn::Module {
    Net() {
      for (const char* name : {"one", "two", "three", "four"}) register_module(name, Part());
      const auto all = parameters();
      const auto flat = torch::zeros({80});
      all[0].set_data(flat.slice(0, 0, 32).view({4, 8}));
      all[1].set_data(flat.slice(0, 32, 64).view({4, 8}));
      all[2].set_data(flat.slice(0, 24, 56).view({4, 8}));
      all[3].set_data(flat.slice(0, 64, 80));
    }
  } net;
  const auto tree = describe_model(net).tree;
  EXPECT_THAT(tree.nodes[1].viewed, testing::IsEmpty());
  EXPECT_THAT(tree.nodes[2].viewed, testing::IsEmpty());
  EXPECT_THAT(tree.nodes[3].viewed, testing::ElementsAre(0, 1));
  EXPECT_THAT(tree.nodes[4].viewed, testing::IsEmpty());
}

struct RowImpl : torch::nn::Module {
  RowImpl() {
    for (const char* name : {"one", "two", "three"}) {
      parts.push_back(register_module(name, Part()));
      torch::nn::init::uniform_(parts.back()->weight);
    }
    to(torch::kDouble);
  }
  Tensor forward(Tensor x) {
    for (auto& part : parts) x = torch::tanh(part(x));
    return x;
  }
  std::vector<Part> parts;
};
SMP_MODULE(Row);

/// Puts the values of all parameters into one memory, as a program does that loads them from one
/// vector.
Row make_flat_row() {
  torch::manual_seed(1);
  Row row;
  const auto parameters = row->parameters();
  namespace utils = torch::nn::utils;
  utils::vector_to_parameters(utils::parameters_to_vector(parameters).detach(), parameters);
  return row;
}

TEST(DescribeModel, LetsPartsOfOneMemoryTrainOnSeveralStages) {
  const auto x = torch::arange(4 * 32, torch::kDouble).view({4, 4, 8}).sin();
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  auto plain = make_flat_row();
  torch::optim::SGD plain_optimizer(plain->parameters(), options);
  for (int s = 0; s < 3; ++s) {
    plain_optimizer.zero_grad();
    plain(x).square().mean().backward();
    plain_optimizer.step();
  }
  Config config;
  config.plan_cache = "off";
  config.microbatches = 2;
  const auto train = [&] {
    auto row = make_flat_row();
    DistributedModel<Row> model(row);
    DistributedOptimizer optimizer(model, torch::optim::SGD(row->parameters(), options));
    auto run = smp::step([&](Tensor rows) { model.backward(model(rows).square().mean()); });
    for (int s = 0; s < 3; ++s) {
      optimizer.zero_grad();
      run(x);
      optimizer.step();
    }
    EXPECT_LT(model.local_parameters().size(), 3u);
    const auto expected = plain->named_parameters();
    for (const auto& [name, value] : model.local_named_parameters()) {
      EXPECT_TRUE(at::allclose(value, expected[name], 1e-12, 1e-14)) << name;
    }
  };
  for (const int ranks : {2, 3}) run_local(ranks, train, config);
}

TEST(DescribeModel, KnowsFrozenWeights) {
  struct Net : torch::nn::Module {
    Net() : part(register_module("part", Part())) { part->weight.requires_grad_(false); }
    Part part;
  } net;
  const auto tree = describe_model(net).tree;
  EXPECT_EQ(tree.parameters[0].bytes, 4 * 32);
  EXPECT_EQ(tree.parameters[0].gradient_bytes, 0);
}

TEST(DescribeModel, CountsBuffersWhereTheyAreHeld) {
  struct Net : torch::nn::Module {
    Net() : norm(register_module("norm", nn::BatchNorm1d(1000))) {
      const auto table = register_buffer("table", torch::zeros({100, 1000}));
      register_buffer("same_table", table.view({-1}));
      register_buffer("ids", torch::arange(50));
    }
    nn::BatchNorm1d norm;
  } net;
  const auto tree = describe_model(net).tree;
  EXPECT_EQ(tree.nodes[0].buffer_bytes, 400'000) << "the table once";
  EXPECT_EQ(tree.nodes[1].buffer_bytes, 2 * 4000 + 8) << "running statistics stay with the norm";
  EXPECT_EQ(tree.common_bytes, 400) << "small ones are everywhere";
}

/// By its name it is one.
struct NotSequentialImpl : torch::nn::Module {
  NotSequentialImpl() : part(register_module("part", Part())) {}
  Tensor forward(const Tensor& x) { return part(x); }
  Part part;
};
SMP_MODULE(NotSequential);

TEST(DescribeModel, KnowsASequentialByItsType) {
  struct Chain : nn::SequentialImpl {
    using nn::SequentialImpl::SequentialImpl;
  };
  struct Net : torch::nn::Module {
    Net() {
      register_module("no", NotSequential());
      register_module("yes", nn::Sequential(Part(), Part()));
      register_module("derived", std::make_shared<Chain>(Part()));
    }
  } net;
  const auto tree = describe_model(net).tree;
  EXPECT_FALSE(tree.nodes[tree.find("no")].sequential);
  EXPECT_TRUE(tree.nodes[tree.find("yes")].sequential);
  EXPECT_TRUE(tree.nodes[tree.find("derived")].sequential);
}

/// Plans are JSON, which has no bytes outside of UTF-8.
TEST(DescribeModel, RefusesNamesThatAreNoText) {
  struct Net : torch::nn::Module {
    Net(const char* module, const char* parameter) {
      register_module(module, torch::nn::ModuleList());
      register_parameter(parameter, torch::ones({1}));
    }
  };
  Net good("caf\xc3\xa9", "\xe2\x82\xac");
  EXPECT_NE(describe_model(good).tree.find("caf\xc3\xa9"), -1);
  Net parameter("a", "w\xff");
  EXPECT_THAT(refusal([&] { static_cast<void>(describe_model(parameter)); }),
              testing::HasSubstr("the name \"w\\xff\" of a module or parameter is no UTF-8"));
  Net module("b\xc3", "w");
  EXPECT_THAT(refusal([&] { static_cast<void>(describe_model(module)); }),
              testing::HasSubstr("the name \"b\\xc3\" of a module or parameter is no UTF-8"));
}

}  // namespace describe_model_test
}  // namespace smp
