// Files of values and dicts: whose file is whose, and what is refused.
#include "smp/program/saved_files.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "api/two_ranks.h"

namespace smp {
namespace saved_files_test {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

struct Progress {
  int epoch = 0;
  std::vector<double> losses;
  std::optional<at::Tensor> order, none;
};

class SavedFiles : public testing::Test {
 protected:
  SavedFiles()
      : folder_((std::filesystem::temp_directory_path() / "smp_saved_files_test").string()) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  ~SavedFiles() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  bool is_there(const std::string& name) const { return std::filesystem::exists(path(name)); }

  static Config layout(int stages, int tp = 1) {
    Config config;
    config.pipeline_parallel_degree = stages;
    config.tensor_parallel_degree = tp;
    config.plan_cache = "off";
    return config;
  }

  const std::string folder_;
};

TEST_F(SavedFiles, OfPartsAreEachRanksOwn) {
  run_local(
      8,
      [&] {
        save(StateDict{{"rank", torch::full({3}, pp_rank() * 10 + tp_rank())}}, path("part"));
        barrier();
        EXPECT_EQ(load(path("part")).at("rank")[0].item<int>(), pp_rank() * 10 + tp_rank());
        const std::map<std::string, std::string> expected{{"format", "pt"}};  // for others
        EXPECT_EQ(load(path("part")).metadata, expected);
      },
      layout(2, 2));
  for (const char* name : {"part_0_0", "part_0_1", "part_1_0", "part_1_1"}) {
    EXPECT_TRUE(is_there(name)) << name;
  }
  EXPECT_FALSE(is_there("part"));
}

TEST_F(SavedFiles, OfReplicasAreEachReplicasOwn) {
  run_local(
      4,
      [&] {
        save(rdp_rank() + 5, path("state"), {.per_replica = true});
        save(7 + rdp_rank(), path("same"));  // the first replica's
        barrier();
        EXPECT_EQ(load<int>(path("state"), {.per_replica = true}), rdp_rank() + 5);
        EXPECT_EQ(load<int>(path("same")), 7);
      },
      layout(2));
  EXPECT_TRUE(is_there("state_0_0_1") && is_there("state_1_0_0") && is_there("same_1_0"));
}

TEST_F(SavedFiles, ForAllAreOneFile) {
  run_local(2, [&] {
    if (rank() == 1) {
      save(Progress{4, {0.5, 0.25}, torch::arange(3), {}}, path("progress"), {.partial = false});
      save(StateDict{{"w", torch::ones({2})}}, path("whole"), {.partial = false});
    }
    barrier();
    const auto progress = load<Progress>(path("progress"), {.partial = false});
    EXPECT_EQ(progress.epoch, 4);
    EXPECT_EQ(progress.losses, (std::vector<double>{0.5, 0.25}));
    EXPECT_TRUE(torch::equal(*progress.order, torch::arange(3)));
    EXPECT_FALSE(progress.none.has_value());
    EXPECT_TRUE(torch::equal(load(path("whole"), {.partial = false}).at("w"), torch::ones({2})));
  });
}

TEST_F(SavedFiles, OfARankWithoutAnythingAreThere) {
  run_local(2, [&] {
    save(rank() == 0 ? StateDict{{"w", torch::ones({2})}} : StateDict(), path("uneven"));
    EXPECT_EQ(load(path("uneven")).size(), rank() == 0 ? 1U : 0U);
  });
}

/// A model's parts, and its optimizer's values beside them, go back where they came from.
TEST_F(SavedFiles, BringAModelBack) {
  run_local(
      4,
      [&] {
        torch::manual_seed(1);
        nn::Sequential net(nn::Linear(3, 4), nn::Linear(4, 2));
        DistributedModel model(net);
        model.place();
        const auto before = model.state_dict(kAllPpRanks);
        save(model.local_state_dict(), path("model"));
        barrier();
        {
          const torch::NoGradGuard no_history;
          for (auto& parameter : model.local_parameters()) parameter.zero_();
        }
        model.load_state_dict(load(path("model")));
        const auto after = model.state_dict(kAllPpRanks);
        for (const auto& [name, tensor] : before) {
          EXPECT_TRUE(torch::equal(tensor, after.at(name))) << name;
        }
      },
      layout(2));
}

TEST_F(SavedFiles, OfAnotherLayoutOrTypeAreRefused) {
  run_local(
      2, [&] { save(rank(), path("part")); }, layout(2));
  run_local(
      2,
      [&] {
        EXPECT_THAT(refusal<UsageError>([&] { load<int>(path("part")); }),
                    AllOf(HasSubstr("part_0_0"), HasSubstr("a part for pp 2, tp 1"),
                          HasSubstr("this job has pp 1, tp 1")));
        EXPECT_THAT(refusal<UsageError>([&] { load<int>(path("part"), {.per_replica = true}); }),
                    AllOf(HasSubstr("there is no"), HasSubstr("part_0_0, part_1_0")));
        EXPECT_THAT(refusal<UsageError>([&] { load(path("else")); }), HasSubstr("there is none"));
      },
      layout(1));
  run_local(
      2,
      [&] {
        EXPECT_THAT(refusal<UsageError>([&] { load<double>(path("part")); }),
                    HasSubstr("holds a int, and no double"));
        auto damaged = load(path("part"));
        for (const char* count : {"", "many"}) {
          damaged.metadata["smp.tensors"] = count;
          save(damaged, path("damaged"));
          EXPECT_THAT(refusal<UsageError>([&] { load<int>(path("damaged")); }),
                      HasSubstr("damaged: it does not say how many tensors"));
        }
        save(StateDict{{"w", torch::ones({2})}}, path("dict"));
        EXPECT_THAT(refusal<UsageError>([&] { load<int>(path("dict")); }),
                    HasSubstr("tensors by name, and no int"));
      },
      layout(2));
}

/// A safetensors file: the length of its header, JSON, and numbers.
TEST_F(SavedFiles, AreNoPickles) {
  run_local(1, [&] { save(StateDict{{"w", torch::ones({2})}}, path("file"), {.partial = false}); });
  std::ifstream file(path("file"), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  ASSERT_GT(bytes.size(), 16U);
  EXPECT_EQ(bytes[8], '{');
  EXPECT_THAT(bytes, testing::Not(AnyOf(testing::StartsWith("PK"), testing::StartsWith("\x80"))));
}

TEST_F(SavedFiles, AreReadOnTheCpu) {
  run_local(1, [&] {
    save(StateDict{{"w", torch::ones({2})}}, path("file"), {.partial = false});
    const auto dict = load(path("file"), {.partial = false});
    EXPECT_TRUE(dict.at("w").is_cpu());
    EXPECT_TRUE(dict.at("w").to(torch::kMeta).is_meta()) << "map_location";
  });
}

/// Names of another program's model, on their way into this one's: translate_function.
TEST_F(SavedFiles, AreTranslatedOnTheirWay) {
  run_local(
      2,
      [&] {
        nn::Sequential net(nn::Linear(2, 2), nn::Linear(2, 2));
        DistributedModel model(net);
        StateDict theirs;
        for (const auto& [name, parameter] : model.named_parameters()) {
          theirs.insert("module." + name + ".value", torch::full_like(parameter, 3));
        }
        if (rank() == 0) save(theirs, path("theirs"), {.partial = false});
        barrier();
        StateDict ours;
        const auto read = without_prefix(load(path("theirs"), {.partial = false}), "module.");
        for (const auto& [name, tensor] : read) {
          ours.insert(name.substr(0, name.rfind('.')), tensor);
        }
        model.load_state_dict(ours);
        model.place();
        for (const auto& parameter : model.local_parameters()) {
          EXPECT_TRUE(torch::equal(parameter, torch::full_like(parameter, 3)));
        }
      },
      layout(2));
}

/// What the original's save_checkpoint() does with tags, `newest` and the last few, written out.
TEST_F(SavedFiles, OfTagsAreFoldersOfTheProgram) {
  namespace fs = std::filesystem;
  constexpr std::size_t kKept = 2;
  run_local(
      2,
      [&] {
        nn::Sequential net(nn::Linear(2, 2), nn::Linear(2, 2));
        DistributedModel model(net);
        std::vector<std::string> tags;
        for (const char* tag : {"step1", "step2", "step3"}) {
          const auto folder = path(tag);
          if (rank() == 0) fs::create_directory(folder);
          barrier();
          save_safetensors(model, folder + "/model");
          if (rank() == 0) save(std::string(tag), path("newest"), {.partial = false});
          tags.push_back(folder);
          if (rank() == 0 && tags.size() > kKept) fs::remove_all(tags[tags.size() - kKept - 1]);
          barrier();
        }
        const auto newest = load<std::string>(path("newest"), {.partial = false});
        EXPECT_EQ(newest, "step3");
        load_safetensors(model, path(newest) + "/model");
        barrier();
        EXPECT_FALSE(is_there("step1"));
        EXPECT_TRUE(is_there("step2"));
      },
      layout(2));
}

}  // namespace saved_files_test
}  // namespace smp
