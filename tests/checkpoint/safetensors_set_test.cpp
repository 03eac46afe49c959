// Safetensors in several files: as an index lists them, in folders, and what disagrees.
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "api/two_ranks.h"
#include "base/files.h"
#include "smp/checkpoint.h"
#include "support/damaged_files.h"
#include "support/refusal.h"
#include "support/source_file.h"

namespace smp::checkpoints {
namespace safetensors_set_test {

using testing::AllOf;
using testing::HasSubstr;

class SafetensorsSet : public testing::Test {
 protected:
  SafetensorsSet() { std::filesystem::create_directories(folder_); }
  ~SafetensorsSet() override { std::filesystem::remove_all(folder_); }
  const std::string& folder() const { return folder_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary | std::ios::trunc) << text;
  }
  std::string index() const { return path("model.safetensors.index.json"); }
  /// The weights of smp::nn::Linear(2, 3), each in a file of its own, and what lists them.
  void write_set(double weight = 2, double bias = 3) const {
    save_safetensors({{"weight", torch::full({3, 2}, weight)}}, path("model-1-of-2.safetensors"));
    save_safetensors({{"bias", torch::full({3}, bias)}}, path("model-2-of-2.safetensors"));
    write("model.safetensors.index.json",
          R"({"metadata": {"total_size": 36}, "weight_map": {)"
          R"("weight": "model-1-of-2.safetensors", "bias": "model-2-of-2.safetensors"}})");
  }
  static void expect_set(const StateDict& dict) {
    EXPECT_TRUE(torch::equal(dict.at("weight"), torch::full({3, 2}, 2.)));
    EXPECT_TRUE(torch::equal(dict.at("bias"), torch::full({3}, 3.)));
    EXPECT_EQ(dict.size(), 2u);
  }

 private:
  std::string folder_ = testing::TempDir() + "set." + std::to_string(getpid()) + "." +
                        testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(SafetensorsSet, IsReadAsOneWhole) {
  write_set();
  expect_set(load_safetensors(index()));
  expect_set(load_safetensors(folder()));
  std::filesystem::copy_file(index(), path("other_name"));
  expect_set(load_safetensors(path("other_name")));  // by what it holds
  for (const auto& given : {index(), folder()}) {
    on_ranks(2, [&] {
      DistributedModel model(std::make_shared<torch::nn::LinearImpl>(2, 3));
      const auto result = load_safetensors(model, rank() == 0 ? given : "/nowhere");
      EXPECT_TRUE(result.missing_keys.empty() && result.unexpected_keys.empty());
      expect_set(model.state_dict(kAllPpRanks));
    });
  }
}

TEST_F(SafetensorsSet, KeepsNamesOfSharedTensors) {
  const auto table = torch::ones({2, 2});
  save_safetensors({{"shared", table}, {"head", table}}, path("a.safetensors"));
  write("index.json", R"({"weight_map": {"shared": "a.safetensors"}})");
  EXPECT_TRUE(torch::equal(load_safetensors(path("index.json")).at("head"), table));
}

TEST_F(SafetensorsSet, WhoseIndexAndFilesDisagreeIsRefused) {
  const auto refused = [&] { return refusal([&] { load_safetensors(index()); }); };
  write_set();
  std::filesystem::remove(path("model-2-of-2.safetensors"));
  EXPECT_THAT(refused(), AllOf(HasSubstr("lists 2 files"),
                               HasSubstr("model-2-of-2.safetensors is not there")));
  save_safetensors({{"other", torch::ones({3})}}, path("model-2-of-2.safetensors"));
  EXPECT_THAT(refused(), AllOf(HasSubstr("model-2-of-2.safetensors has \"other\""),
                               HasSubstr("index.json does not list it")));
  save_safetensors(StateDict(), path("model-2-of-2.safetensors"));
  EXPECT_THAT(refused(), HasSubstr("model-2-of-2.safetensors has \"bias\", but it does not"));
  save_safetensors({{"bias", torch::ones({3})}, {"weight", torch::ones({3, 2})}},
                   path("model-2-of-2.safetensors"));
  EXPECT_THAT(refused(), AllOf(HasSubstr("model-2-of-2.safetensors has \"weight\""),
                               HasSubstr("says that model-1-of-2.safetensors has it")));
}

TEST_F(SafetensorsSet, WithAnIndexThatIsNoneIsRefused) {
  const auto refused = [&](const std::string& text) {
    write("model.safetensors.index.json", text);
    return refusal([&] { load_safetensors(index()); });
  };
  EXPECT_THAT(refused("{"), HasSubstr("model.safetensors.index.json"));
  EXPECT_THAT(refused(R"({"model_type": "t5"})"), HasSubstr("it has no \"weight_map\""));
  EXPECT_THAT(refused(R"({"weight_map": []})"), HasSubstr("it has no \"weight_map\""));
  EXPECT_THAT(refused(R"({"weight_map": {"x": 3}})"),
              HasSubstr("no file of this folder for \"x\""));
  for (const char* away : {"../x.safetensors", "/etc/passwd", "a/../../x", ""}) {
    EXPECT_THAT(refused(std::string(R"({"weight_map": {"x": ")") + away + "\"}}"),
                HasSubstr("no file of this folder for \"x\""));
  }
  EXPECT_THAT(refused(R"({"weight_map": {"x": "a", "x": "b"}})"), HasSubstr("given twice"));
}

TEST_F(SafetensorsSet, InAFolderThatHoldsTwoModelsIsRefusedIfTheyDisagree) {
  write_set();
  const StateDict equal{{"bias", torch::full({3}, 3.)}, {"weight", torch::full({3, 2}, 2.)}};
  const auto with_single = [&](const StateDict& dict) {
    save_safetensors(dict, path("model.safetensors"));
    return refusal([&] { load_safetensors(folder()); });
  };
  EXPECT_EQ(with_single(equal), "accepted");
  expect_set(load_safetensors(folder()));
  const auto both = AllOf(HasSubstr("holds two models"), HasSubstr("model.safetensors and"),
                          HasSubstr("model.safetensors.index.json"));
  EXPECT_THAT(with_single({{"bias", torch::full({3}, 3.)}, {"weight", torch::full({3, 2}, 5.)}}),
              AllOf(both, HasSubstr("element [0, 0] of \"weight\" is 5 in the first and 2")));
  EXPECT_THAT(with_single({{"bias", torch::full({3}, 3.)}}),
              AllOf(both, HasSubstr("\"weight\" is in the second only")));
  EXPECT_THAT(with_single({{"bias", torch::full({3}, 3., torch::kDouble)}}),
              AllOf(both, HasSubstr("\"bias\" is Double [3] in the first and Float [3]")));
  on_ranks(2, [&] {
    DistributedModel model(std::make_shared<torch::nn::LinearImpl>(2, 3));
    EXPECT_THAT(refusal([&] { load_safetensors(model, folder()); }), both);
    load_safetensors(model, index());  // named, it counts
    expect_set(model.state_dict(kAllPpRanks));
  });
}

TEST_F(SafetensorsSet, OfPartsOfTensorsIsRefusedByName) {
  const auto dcp = support::source_file("tests/data/dcp");
  const auto whole = load_safetensors(dcp);
  EXPECT_TRUE(torch::equal(whole.at("w"), torch::arange(12, torch::kFloat).reshape({4, 3})));
  EXPECT_TRUE(torch::equal(whole.at("b"), torch::arange(3, torch::kFloat)));
  const auto first = dcp + "/sharded/shard-00001-model-00001-of-00001.safetensors";
  const auto second = dcp + "/sharded/shard-00002-model-00001-of-00001.safetensors";
  for (const auto& shard : {first, second}) {
    EXPECT_THAT(refusal<UnsupportedError>([&] { load_safetensors(shard); }),
                AllOf(HasSubstr("w: it is a part of the tensor of that name"), HasSubstr(shard),
                      HasSubstr("enable_consolidation")));
    on_ranks(2, [&] {
      struct Two : torch::nn::Module {
        Two() {
          register_parameter("w", torch::zeros({2, 3}));  // the shape of the part
          register_parameter("b", torch::zeros({3}));
        }
      };
      DistributedModel model(std::make_shared<Two>());
      EXPECT_THAT(refusal([&] { load_safetensors(model, shard, /*strict=*/false); }),
                  AllOf(HasSubstr("\"w\": it is a part of"), HasSubstr(shard)));
      EXPECT_EQ(model.state_dict(kAllPpRanks).at("w").abs().sum().item<float>(), 0);
    });
  }
  EXPECT_THAT(refusal<UnsupportedError>([&] { load_safetensors(dcp + "/sharded"); }),
              AllOf(HasSubstr("shard-00001"), HasSubstr("\"w\": it is a part of")));
  const auto rest = load_safetensors(second, /*strict=*/false);
  EXPECT_EQ(rest.names(), std::vector<std::string>{"b"});
  // A job of one rank notes that its tensors begin at 0, and they are whole.
  std::filesystem::copy_file(first, path("alone.safetensors"));
  EXPECT_EQ(load_safetensors(path("alone.safetensors")).at("w").sizes(), at::IntArrayRef({2, 3}));
}

TEST_F(SafetensorsSet, LeavesOutWhatNoModelTensorTakes) {
  const std::string data("\x7f\x80\x81\x00\x00\xc0\x3f", 7);
  const std::string header = R"({"odd":{"dtype":"F6_E3M2","shape":[4],"data_offsets":[0,3]},)"
                             R"("f":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}})";
  const std::uint64_t length = header.size();
  write("small.safetensors",
        std::string(reinterpret_cast<const char*>(&length), 8) + header + data);
  struct Named : torch::nn::Module {
    Named(const char* a, const char* b) {
      register_parameter(a, torch::zeros({1}));
      if (b != nullptr) register_parameter(b, torch::zeros({4}));
    }
  };
  on_ranks(2, [&] {
    DistributedModel model(std::make_shared<Named>("f", nullptr));
    EXPECT_THAT(refusal([&] { load_safetensors(model, path("small.safetensors")); }),
                HasSubstr("unexpected: odd"));
    const auto result = load_safetensors(model, path("small.safetensors"), false);
    EXPECT_EQ(result.unexpected_keys, std::vector<std::string>{"odd"});
    EXPECT_EQ(model.state_dict(kAllPpRanks).at("f").item<float>(), 1.5f);
    DistributedModel both(std::make_shared<Named>("f", "odd"));
    EXPECT_THAT(refusal([&] { load_safetensors(both, path("small.safetensors")); }),
                HasSubstr("\"odd\": LibTorch has no dtype \"F6_E3M2\""));
    EXPECT_EQ(both.state_dict(kAllPpRanks).at("f").item<float>(), 0);
  });
}

/// Each ends with the model or with a message.
TEST_F(SafetensorsSet, NoticesADamagedIndex) {
  write_set();
  const auto good = base::read_file(index());
  std::mt19937 random(7);
  int refused = 0;
  const int files = damaged_files(1000);
  for (int i = 0; i < files; ++i) {
    auto bytes = good;
    for (unsigned k = 0; k < 1 + random() % 3; ++k) {
      const auto at = random() % bytes.size();
      if (random() % 3 == 0)
        bytes.erase(at, 1 + random() % 9);
      else if (random() % 2 == 0)
        bytes.insert(at, 1 + random() % 3, static_cast<char>(random()));
      else
        bytes[at] = static_cast<char>(random());
      if (bytes.empty()) bytes = "x";
    }
    write("model.safetensors.index.json", bytes);
    try {
      expect_set(load_safetensors(index()));
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, files / 2);
}

}  // namespace safetensors_set_test
}  // namespace smp::checkpoints
