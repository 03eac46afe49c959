// State dicts and files of placed models: gathered from the owners, loaded wherever they are, and
// refused on every rank alike.
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "api/two_ranks.h"
#include "base/files.h"
#include "checkpoint/model_state_testing.h"

namespace smp::model_state {
namespace model_state_test {

using testing::ElementsAre;
using testing::HasSubstr;

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
      save_safetensors(model, rank() == 0 ? path : "/nowhere/x", {{"epoch", "3"}});
    });
    const auto dict = load_safetensors(path);
    EXPECT_EQ(dict.metadata.at("epoch"), "3");
    EXPECT_EQ(dict.size(), expected.size());
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(torch::equal(dict.at(name), tensor));
    on_ranks(ranks == 1 ? 4 : 2, [&] {
      DistributedModel model(make_net(77));
      spread(model, 1);
      const auto own = rank() == 0 ? path : "/nowhere/x";
      load_safetensors(model, own);
      model.place();
      load_safetensors(model, own);
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
    StateDict odd;
    odd.insert("odd", torch::ones({1}));
    const auto other = path + "." + std::to_string(rank());
    save_safetensors(odd, other);
    EXPECT_THAT(refusal([&] { load_safetensors(model, other); }),
                testing::AllOf(HasSubstr("load_safetensors: the file " + path + ".0 does not fit"),
                               HasSubstr("unexpected: odd")));
    std::filesystem::remove(other);
    std::ofstream(path, std::ios::app) << "x";
    EXPECT_THAT(refusal([&] { load_safetensors(model, path); }), HasSubstr("damaged safetensors"));
    expect_same(model.state_dict(kAllPpRanks), expected);
  });
  std::filesystem::remove(path);
}

/// Whatever comes before the damage in the file, and whoever would have got it.
TEST(ModelFile, WithDamagedValuesChangesNothing) {
  const auto path = testing::TempDir() + "damaged." + std::to_string(getpid()) + ".safetensors";
  save_safetensors(plain_dict(), path);
  const auto size = std::filesystem::file_size(path);
  const auto flip = [&](std::uintmax_t place) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(place));
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(place));
    file.put(byte);
  };
  for (const auto from_end : {1, 200, 600}) {
    flip(size - static_cast<std::uintmax_t>(from_end));
    on_ranks(3, [&] {
      DistributedModel model(make_net(77));
      spread(model);
      model.place();
      const auto before = model.state_dict(kAllPpRanks);
      EXPECT_THAT(refusal([&] { load_safetensors(model, path); }), HasSubstr("damaged values of"));
      expect_same(model.state_dict(kAllPpRanks), before);
    });
    flip(size - static_cast<std::uintmax_t>(from_end));
  }
  std::filesystem::remove(path);
}

/// A stage reads what it owns where it sees the file of the first one, which else reads for it.
TEST(ModelFile, IsReadByWhoOwnsIt) {
  const auto path = testing::TempDir() + "owned." + std::to_string(getpid()) + ".safetensors";
  const auto copy = path + ".copy";
  const auto expected = plain_dict();
  save_safetensors(expected, path);
  std::filesystem::copy_file(path, copy);
  std::string bytes = base::read_file(path);
  const auto values = expected.at("blocks.1.linear.weight").contiguous();
  const std::string_view damaged(static_cast<const char*>(values.const_data_ptr()),
                                 values.nbytes());
  bytes[bytes.find(damaged)] ^= 1;
  for (const bool seen : {true, false}) {
    base::write_file(path, bytes);
    on_ranks(3, [&] {
      DistributedModel model(make_net(77));
      spread(model);  // blocks.1 to rank 2
      model.place();
      const auto before = model.state_dict(kAllPpRanks);
      const auto own = rank() == 0 || seen ? path : copy;
      const auto text = refusal([&] { load_safetensors(model, own); });
      EXPECT_THAT(text, HasSubstr("damaged values of \"blocks.1.linear.weight\""));
      const int reader = seen ? 2 : 0;
      const auto told = HasSubstr("rank " + std::to_string(reader) + ":");
      if (rank() == reader) {
        EXPECT_THAT(text, testing::Not(told));
      } else {
        EXPECT_THAT(text, told);
      }
      expect_same(model.state_dict(kAllPpRanks), before);
    });
    std::filesystem::copy_file(copy, path, std::filesystem::copy_options::overwrite_existing);
    on_ranks(3, [&] {
      DistributedModel model(make_net(77));
      spread(model);
      model.place();
      load_safetensors(model, rank() == 0 || seen ? path : copy);
      expect_same(model.state_dict(kAllPpRanks), expected);
    });
  }
  std::filesystem::remove(path);
  std::filesystem::remove(copy);
}

/// A file of another program has no checksums, and may be of other types.
TEST(ModelFile, OfOtherTypesIsConverted) {
  const auto path = testing::TempDir() + "narrow." + std::to_string(getpid()) + ".safetensors";
  StateDict narrow;
  for (const auto& [name, tensor] : plain_dict()) {
    const bool stays = !tensor.is_floating_point() || name == "blocks.1.linear.bias";
    narrow.insert(name, stays ? tensor : tensor.to(torch::kFloat));
  }
  save_safetensors(narrow, path);
  on_ranks(2, [&] {
    DistributedModel model(make_net(77));
    spread(model);
    model.place();
    load_safetensors(model, path);
    for (const auto& [name, tensor] : model.state_dict(kAllPpRanks)) {
      EXPECT_TRUE(torch::equal(tensor, narrow.at(name).to(tensor.scalar_type()))) << name;
    }
  });
  std::filesystem::remove(path);
}

/// Returns what rank 0 and the others print while a model of `type` loads `dict` on `ranks` ranks.
std::string words_of_load(const StateDict& dict, at::ScalarType type, int ranks, bool from_file) {
  const auto path = testing::TempDir() + "types." + std::to_string(getpid()) + ".safetensors";
  save_safetensors(dict, path);
  testing::internal::CaptureStderr();
  on_ranks(ranks, [&] {
    auto net = make_net(77);
    net->to(type);
    DistributedModel model(net);
    spread(model);
    model.place();
    from_file ? load_safetensors(model, path) : model.load_state_dict(dict);
  });
  std::filesystem::remove(path);
  return testing::internal::GetCapturedStderr();
}

std::size_t times_in(const std::string& text, const std::string& part) {
  std::size_t times = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

/// Said once, for all ranks.
TEST(ModelFile, OfWiderTypesIsRoundedAloud) {
  for (const int ranks : {1, 2}) {
    for (const bool from_file : {false, true}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, file " << from_file);
      const auto to = [&](at::ScalarType type) {
        return words_of_load(plain_dict(), type, ranks, from_file);
      };
      const auto narrow = to(torch::kBFloat16);
      EXPECT_THAT(narrow, HasSubstr("tensors of Double become BFloat16 (the first is "));
      EXPECT_THAT(narrow, HasSubstr("rounded by up to 1/256 of themselves"));
      EXPECT_EQ(times_in(narrow, "become BFloat16"), 1u) << narrow;
      EXPECT_THAT(to(torch::kHalf), HasSubstr("beyond 65504 they become infinite"));
      EXPECT_THAT(to(torch::kFloat), HasSubstr("tensors of Double become Float (the first is "));
      EXPECT_EQ(times_in(to(torch::kDouble), " become "), 0u);
    }
  }
}

/// A module of this process, of which one tensor holds less.
TEST(ModelFile, OfWiderTypesIsRoundedAloudInAModuleToo) {
  torch::nn::Linear net(2, 2);
  net->weight.set_data(net->weight.to(torch::kBFloat16));
  const StateDict dict{{"weight", torch::ones({2, 2})}, {"bias", torch::ones({2})}};
  testing::internal::CaptureStderr();
  load_state_dict(*net, dict);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("load_state_dict: the dict: 1 tensor of Float becomes BFloat16 (weight): "
                        "numbers are rounded by up to 1/256 of themselves"));
}

/// LibTorch compares no types of 8 bits.
TEST(ModelFile, OfEightBitsIsLoadedIntoWiderTypes) {
  torch::nn::Linear net(torch::nn::LinearOptions(2, 2).bias(false));
  const auto values = torch::tensor({1.5f, -2.0f, 0.25f, 8.0f}).view({2, 2});
  const StateDict dict{{"weight", values.to(torch::kFloat8_e4m3fn)}};
  testing::internal::CaptureStderr();
  load_state_dict(*net, dict);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(torch::equal(net->weight, values));
}

/// As those of a dict.
TEST(ModelFile, WithTwoValuesForOneTensorIsRefusedIfStrict) {
  const auto path = testing::TempDir() + "untied." + std::to_string(getpid()) + ".safetensors";
  auto dict = plain_dict();
  dict.erase("head.weight");
  dict.insert("head.weight", torch::full({6, 4}, 3, torch::kDouble));
  save_safetensors(dict, path);
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    spread(model);
    model.place();
    EXPECT_THAT(refusal([&] { load_safetensors(model, path); }),
                testing::AllOf(HasSubstr("table.weight"), HasSubstr("head.weight"),
                               HasSubstr("there are different values for them")));
    load_safetensors(model, path, /*strict=*/false);
    EXPECT_TRUE(
        torch::equal(model.state_dict(kAllPpRanks).at("table.weight"), dict.at("head.weight")));
  });
  std::filesystem::remove(path);
}

/// The file has one of the names for another tensor, which is tied otherwise where it was saved.
TEST(ModelFile, WithATensorTiedOtherwiseIsRefusedIfStrict) {
  const auto path = testing::TempDir() + "otherwise." + std::to_string(getpid()) + ".safetensors";
  struct Three : torch::nn::Module {
    explicit Three(const char* tied_with) {
      for (const char* name : {"a", "b"}) register_parameter(name, torch::randn({3, 2}));
      register_parameter("c", named_parameters()[tied_with]);
    }
  };
  on_ranks(1, [&] {
    torch::manual_seed(1);
    DistributedModel saved(std::make_shared<Three>("a"));
    saved.place();
    save_safetensors(saved, path);
    DistributedModel otherwise(std::make_shared<Three>("b"));
    otherwise.place();
    EXPECT_THAT(refusal([&] { load_safetensors(otherwise, path); }),
                HasSubstr("one tensor under the names b and c, but there are different values"));
    load_safetensors(saved, path);
  });
  std::filesystem::remove(path);
}

/// Strictly: nobody misses a name that his model does not have.
TEST(ModelFile, OfTiedParametersFillsAModelThatHasOneOfTheNames) {
  const auto path = testing::TempDir() + "one_name." + std::to_string(getpid()) + ".safetensors";
  struct Pair : torch::nn::Module {
    Pair(const char* first, const char* second) {
      const auto weight = register_parameter(first, torch::randn({3, 2}));
      if (second != nullptr) register_parameter(second, weight);
    }
  };
  for (const char* name : {"first", "second"}) {
    on_ranks(1, [&] {
      torch::manual_seed(1);
      DistributedModel tied(std::make_shared<Pair>("first", "second"));
      tied.place();
      save_safetensors(tied, path);
      const auto saved = tied.state_dict().at("second");
      DistributedModel one(std::make_shared<Pair>(name, nullptr));
      one.place();
      load_safetensors(one, path);
      EXPECT_TRUE(torch::equal(one.state_dict().at(name), saved)) << name;
    });
  }
  std::filesystem::remove(path);
}

/// As in the dict of the file: what was one tensor under two names may be two in another model.
TEST(ModelFile, OfTiedParametersFillsAModelWhereTheyAreNot) {
  const auto path = testing::TempDir() + "tied." + std::to_string(getpid()) + ".safetensors";
  const auto expected = plain_dict();
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    spread(model);
    model.place();
    save_safetensors(model, path);
  });
  on_ranks(3, [&] {
    torch::manual_seed(77);
    Net net(/*tied=*/false);
    net->to(torch::kDouble);
    DistributedModel model(net);
    spread(model, 1);
    model.place();
    const auto result = load_safetensors(model, path);
    EXPECT_TRUE(result.missing_keys.empty());
    EXPECT_TRUE(result.unexpected_keys.empty());
    expect_same(model.state_dict(kAllPpRanks), expected);
  });
  std::filesystem::remove(path);
}

}  // namespace model_state_test
}  // namespace smp::model_state
