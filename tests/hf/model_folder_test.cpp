// Folders that hold a model already: nothing of it is left, and never a mixture of both.
#include "hf/model_folder.h"
#include "base/files.h"
#include "hf/hf_testing.h"

namespace smp::hf {
namespace model_folder_test {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

StateDict dict_of(double value) {
  return {{"model.norm.weight", torch::full({8}, value)},
          {"lm_head.weight", torch::full({2, 4}, value + 1)},
          {"model.embed_tokens.weight", torch::full({2, 4}, value + 2)}};
}

std::vector<checkpoints::TensorInfo> infos_of(const StateDict& dict) {
  std::vector<checkpoints::TensorInfo> infos;
  for (const auto& [name, tensor] : dict) {
    infos.push_back(checkpoints::TensorInfo::of(name, tensor));
  }
  return infos;
}

constexpr std::uint64_t kOne = 1'000, kTwo = 64, kThree = 32;

class ModelFolder : public FolderTest {
 protected:
  SaveReport write_model(double value, std::uint64_t shard_bytes) const {
    return save(dict_of(value), folder(), Family::kLlama, {.shard_bytes = shard_bytes});
  }
  void expect_model(double value) const {
    expect_same_tensors(load_safetensors(folder()), dict_of(value));
  }
};

TEST_F(ModelFolder, HoldsOneModelWhateverItHeldBefore) {
  write("tokenizer.json", "{}");
  write("config.json", "{\"old\": 1}");
  double value = 0;
  for (const auto before : {kOne, kTwo, kThree}) {
    for (const auto after : {kOne, kTwo, kThree}) {
      SCOPED_TRACE(std::to_string(before) + " to " + std::to_string(after));
      write_model(++value, before);
      const auto report = write_model(++value, after);
      expect_model(value);
      std::vector<std::string> expected = report.files;
      expected.insert(expected.end(), {"config.json", "tokenizer.json"});
      EXPECT_THAT(files(), testing::UnorderedElementsAreArray(expected));
      EXPECT_EQ(report.bytes, 96u);
    }
  }
  EXPECT_THAT(files(),
              ElementsAre("config.json", "model-00001-of-00003.safetensors",
                          "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
                          "model.safetensors.index.json", "tokenizer.json"));
  EXPECT_EQ(base::read_file(path("config.json")), "{\"old\": 1}");
}

/// Shards of other names, as other programs choose them, go too; what no index names stays.
TEST_F(ModelFolder, RemovesShardsThatTheOldIndexNames) {
  save_safetensors({{"a", torch::ones({1})}}, path("part-a.safetensors"));
  save_safetensors({{"b", torch::ones({1})}}, path("adapter.safetensors"));
  write("model.safetensors.index.json",
        R"({"weight_map": {"a": "part-a.safetensors", "b": "../elsewhere.safetensors"}})");
  write_model(1, kOne);
  EXPECT_THAT(files(), ElementsAre("adapter.safetensors", "model.safetensors"));
}

/// A folder that holds both forms, of different models, is refused.
TEST_F(ModelFolder, WithTwoModelsIsRefused) {
  write_model(1, kTwo);
  save_safetensors(dict_of(2), path("model.safetensors"));
  EXPECT_THAT(refusal([&] { read(folder(), Family::kLlama); }),
              AllOf(HasSubstr("holds two models"), HasSubstr("disagree")));
  save_safetensors(dict_of(1), path("model.safetensors"));
  EXPECT_EQ(read(folder(), Family::kLlama).size(), 3u);
}

/// At every moment before the end the folder gives the old model, afterwards the new one.
TEST_F(ModelFolder, GivesTheOldModelUntilTheNewOneIsComplete) {
  for (const auto before : {kOne, kThree}) {
    for (const auto after : {kOne, kThree}) {
      write_model(1, before);
      {
        const auto dict = dict_of(5);
        hf::ModelFolder writing(folder(), infos_of(dict), after, {});
        for (std::size_t i = 0; i < dict.size(); ++i) {
          expect_model(1);
          writing.write(i, (dict.begin() + static_cast<std::ptrdiff_t>(i))->second);
        }
        expect_model(1);
      }
      expect_model(1);  // a save that failed
      EXPECT_EQ(files().size(), before == kOne ? 1u : 4u);
      write_model(2, after);
      expect_model(2);
      std::filesystem::remove_all(folder());
    }
  }
}

/// A folder that bears the name of the file makes the last step fail.
TEST_F(ModelFolder, KeepsTheOldConfigWhereTensorsCannotBePublished) {
  const auto dict = dict_of(5);
  for (const auto& [bytes, file] :
       {std::pair(kOne, "model.safetensors"), std::pair(kThree, "model.safetensors.index.json")}) {
    for (const bool old : {true, false}) {
      std::filesystem::create_directories(path(file) + "/in_the_way");
      if (old) write("config.json", "{\"old\": 1}");
      {
        hf::ModelFolder writing(folder(), infos_of(dict), bytes, {});
        for (std::size_t i = 0; i < dict.size(); ++i) {
          writing.write(i, (dict.begin() + static_cast<std::ptrdiff_t>(i))->second);
        }
        EXPECT_THAT(refusal<ResourceError>([&] { writing.commit("{\"new\": 1}"); }),
                    HasSubstr(file));
      }
      EXPECT_EQ(files().size(), old ? 2u : 1u) << "left behind";
      if (old) {
        EXPECT_EQ(base::read_file(path("config.json")), "{\"old\": 1}");
      }
      std::filesystem::remove_all(folder());
    }
  }
}

/// What a save left that was killed between its steps is gone after the next one.
TEST_F(ModelFolder, CleansUpAfterAKilledSave) {
  write_model(1, kThree);
  for (const char* name :
       {"new-1-model-00001-of-00003.safetensors", "link-new-1-model-00001-of-00003.safetensors"}) {
    save_safetensors({{"x", torch::ones({1})}}, path(name));
  }
  write_model(2, kThree);
  expect_model(2);
  EXPECT_EQ(files().size(), 4u);
}

}  // namespace model_folder_test
}  // namespace smp::hf
