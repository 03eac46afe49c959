// State dicts of plain modules: PyTorch's names in its order, loaded as PyTorch loads them.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "checkpoint/model_state_testing.h"
#include "support/refusal.h"

namespace smp::model_state {
namespace module_state_dict_test {

using testing::ElementsAre;
using testing::HasSubstr;

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

/// As a copy would, though what is given changes while it is loaded.
TEST(StateDictOfModule, LoadsTensorsOfTheModuleItself) {
  auto net = make_net(1);
  const auto before = plain_dict(1);
  const auto own = state_dict(*net);
  load_state_dict(*net, own);
  expect_same(state_dict(*net), before);
  const auto given = [&](const StateDict& from) {
    StateDict dict;
    dict.insert("blocks.0.linear.weight", from.at("blocks.1.linear.weight"));
    dict.insert("blocks.1.linear.weight", from.at("blocks.0.linear.weight"));
    dict.insert("blocks.2.linear.weight", from.at("blocks.1.linear.weight").t());
    return dict;
  };
  load_state_dict(*net, given(own), /*strict=*/false);
  for (const auto& [name, tensor] : given(before)) {
    EXPECT_TRUE(torch::equal(state_dict(*net).at(name), tensor)) << name;
  }
}

}  // namespace module_state_dict_test
}  // namespace smp::model_state
