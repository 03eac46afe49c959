// Names that wrappers changed: the error says what would fit, and the call that it names does it.
#include "checkpoint/names.h"

#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "api/two_ranks.h"
#include "base/log.h"
#include "checkpoint/model_state_testing.h"

namespace smp::model_state {
namespace names_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

StateDict renamed(const std::function<std::string(const std::string&)>& change) {
  StateDict dict;
  for (const auto& [name, tensor] : plain_dict(9)) dict.insert(change(name), tensor);
  return dict;
}

std::string refused(const StateDict& dict) {
  auto net = make_net();
  auto text = refusal([&] { load_state_dict(*net, dict); });
  expect_same(state_dict(*net), plain_dict());
  return text;
}

void expect_loaded(const StateDict& dict) {
  auto net = make_net();
  load_state_dict(*net, dict);
  expect_same(state_dict(*net), plain_dict(9));
}

TEST(Names, FitWithoutAPrefix) {
  for (const std::string prefix :
       {"module.", "_orig_mod.", "model.", "transformer.", "module._orig_mod.", "a.b.c."}) {
    const auto dict = renamed([&](const std::string& name) { return prefix + name; });
    const auto text = refused(dict);
    if (prefix == "_orig_mod.") {
      EXPECT_THAT(text, HasSubstr("smp::without_part(dict, \"_orig_mod\")"));
    } else {
      EXPECT_THAT(text, HasSubstr("smp::without_prefix(dict, \"" + prefix + "\")"));
    }
    expect_loaded(without_prefix(dict, prefix));
  }
}

/// As GPT-2's: a head beside the transformer.
TEST(Names, FitWithoutAPrefixThatSomeHave) {
  const auto dict = renamed([](const std::string& name) {
    return name.starts_with("head.") ? name : "transformer." + name;
  });
  EXPECT_THAT(refused(dict), HasSubstr("smp::without_prefix(dict, \"transformer.\")"));
  expect_loaded(without_prefix(dict, "transformer."));
}

TEST(Names, FitWithAPrefix) {
  struct Outer : torch::nn::Module {
    explicit Outer(const Net& net) { register_module("model", net.ptr()); }
  };
  Outer outer(make_net());
  const auto text = refusal([&] { load_state_dict(outer, plain_dict(9)); });
  EXPECT_THAT(text, HasSubstr("smp::with_prefix(dict, \"model.\")"));
  load_state_dict(outer, with_prefix(plain_dict(9), "model."));
  expect_same(state_dict(outer), with_prefix(plain_dict(9), "model."));
}

TEST(Names, FitWithoutWhatIsInsideOfThem) {
  const auto dict = renamed([](const std::string& name) {
    const auto at = name.find(".linear.");
    return at == std::string::npos ? name : name.substr(0, at) + "._orig_mod" + name.substr(at);
  });
  EXPECT_THAT(refused(dict), HasSubstr("smp::without_part(dict, \"_orig_mod\")"));
  expect_loaded(without_part(dict, "_orig_mod"));
  EXPECT_EQ(checkpoints::without_part("_orig_mod.a._orig_mod.b._orig_mod", "_orig_mod"), "a.b");
  EXPECT_EQ(checkpoints::without_part("a_orig_mod.b", "_orig_mod"), "a_orig_mod.b");
}

TEST(Names, ThatFitNeitherWayAreListedAlone) {
  auto dict = renamed([](const std::string& name) { return "module." + name; });
  dict.erase("module.head.bias");
  EXPECT_THAT(refused(dict), AllOf(HasSubstr("unexpected: module.table.weight"),
                                   Not(HasSubstr("All names fit")), HasSubstr("strict = false")));
}

/// Whoever gives the names; and a load that is not strict says that it took nothing.
TEST(Names, AreHintedAtOnAllRanks) {
  const auto path = testing::TempDir() + "names." + std::to_string(getpid()) + ".safetensors";
  const auto dict = renamed([](const std::string& name) { return "module." + name; });
  save_safetensors(dict, path);
  const base::LogCapture log;
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    spread(model);
    for (const auto& text : {refusal([&] { load_safetensors(model, path); }), refusal([&] {
                               model.load_state_dict(rank() == 1 ? dict : StateDict());
                             })}) {
      EXPECT_THAT(text, HasSubstr("smp::without_prefix(dict, \"module.\")"));
    }
    EXPECT_EQ(model.load_state_dict(dict, /*strict=*/false).unexpected_keys.size(), dict.size());
  });
  EXPECT_THAT(log.text(), HasSubstr("smp::without_prefix(dict, \"module.\")"));
  std::filesystem::remove(path);
}

TEST(Names, ThatWouldBeOneAreRefused) {
  const auto one = torch::ones({1});
  EXPECT_THAT(refusal([&] {
                without_prefix({{"a.x", one}, {"x", one}}, "a.");
              }),
              HasSubstr("two tensors would be called \"x\""));
  StateDict dict{{"a.x", one}};
  dict.metadata["note"] = "kept";
  EXPECT_EQ(without_prefix(dict, "a.").metadata.at("note"), "kept");
}

}  // namespace names_test
}  // namespace smp::model_state
