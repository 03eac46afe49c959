// Damaged folders of published models: they are read as what was written, or refused by an error of
// ours, which then has changed nothing.
//
//   SMP_DAMAGED_FILES=1000000 makes as many.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/files.h"
#include "checkpoint/safetensors_file.h"
#include "hf/hf_testing.h"
#include "models/llama.h"
#include "support/damaged_files.h"

namespace smp::hf {
namespace damaged_folder_test {

models::LlamaConfig net_config() {
  models::LlamaConfig config;
  config.vocab_size = 23;
  config.hidden_size = 16;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 4;
  config.head_dim = 8;
  return config;
}

StateDict copy_of(const torch::nn::Module& module) {
  StateDict copies;
  for (const auto& [name, tensor] : state_dict(module)) copies.insert(name, tensor.clone());
  return copies;
}

bool same(const StateDict& a, const StateDict& b) {
  if (a.size() != b.size()) return false;
  return std::all_of(a.begin(), a.end(), [&](const auto& item) {
    const auto& [name, tensor] = item;
    return b.contains(name) && b.at(name).scalar_type() == tensor.scalar_type() &&
           b.at(name).sizes() == tensor.sizes() &&
           torch::equal(bits_of(b.at(name)), bits_of(tensor));
  });
}

/// What is wrong with a folder.
struct Damage {
  std::set<std::string> files;  ///< that are not as they were
  std::string text;
  bool in_one_place = true;
};

class DamagedFolder : public FolderTest {
 protected:
  DamagedFolder() {
    save(expected_, folder(), Family::kLlama,
         {.config = sample_.config, .shard_bytes = 6'000, .metadata = {{"format", "pt"}}});
    for (const auto& name : files()) {
      good_[name] = base::read_file(path(name));
      names_.push_back(name);
    }
  }

  Damage damage_something(std::mt19937& random) const {
    const auto name = names_[random() % names_.size()];
    const auto other = names_[random() % names_.size()];
    const auto place = path(name);
    switch (random() % 12) {
      case 0:
        std::filesystem::remove(place);
        return {{name}, name + " is not there"};
      case 1:
        write(name, "");
        return {{name}, name + " is empty"};
      case 2:
        write(name, good_.at(other));
        return {{name}, name + " is a copy of " + other};
      case 3:
        write(name, good_.at(other));
        write(other, good_.at(name));
        return {{name, other}, name + " and " + other + " are exchanged"};
      case 4:
        std::filesystem::remove(place);
        std::filesystem::create_directory(place);
        return {{name}, name + " is a folder"};
      case 5:
        std::filesystem::remove(place);
        std::filesystem::create_symlink(path("nowhere"), place);
        return {{name}, name + " is a link to nothing"};
      default: {
        const int places = random() % 4 == 0 ? 3 : 1;
        const auto bytes = damaged(good_.at(name), random, places);
        write(name, bytes);
        // Three may take the checksums as well.
        const bool lost = places > 1 && bytes.find(checkpoints::kChecksumKey) == std::string::npos;
        return {{name}, name + " has other bytes", !lost};
      }
    }
  }
  void restore(const Damage& damage) const {
    for (const auto& name : damage.files) {
      std::filesystem::remove_all(path(name));
      write(name, good_.at(name));
    }
  }

  /// Returns true if `action` is done, false if it is refused.
  template <class Action>
  bool is_done(const Damage& damage, Action&& action) const {
    try {
      action();
      return true;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(folder()), std::string::npos) << damage.text << ": " << text;
      EXPECT_LT(text.size(), 4000u) << damage.text;
    } catch (const std::exception& error) {
      ADD_FAILURE() << damage.text << ": no error of ours: " << error.what();
    }
    return false;
  }

  const Sample sample_{"llama", small_llama("llama", 4)};
  const StateDict expected_ = load_safetensors(sample_.file());

 private:
  std::map<std::string, std::string> good_;
  std::vector<std::string> names_;
};

TEST_F(DamagedFolder, IsReadAsItWasOrRefused) {
  torch::manual_seed(1);
  models::Llama net(net_config());
  const auto before = copy_of(*net);
  ASSERT_FALSE(same(before, expected_));
  const int count = damaged_files(10'000);
  int refused = 0;
  for (int seed = 0; seed < count && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto found = damage_something(random);
    is_done(found, [&] { Config::read(folder()); });
    is_done(found, [&] { has_own_head(folder(), Family::kLlama); });
    StateDict dict;
    const bool was_read = is_done(found, [&] { dict = read(folder(), Family::kLlama); });
    const bool was_loaded = is_done(found, [&] { load(*net, folder(), Family::kLlama); });
    if (found.in_one_place) EXPECT_EQ(was_read, was_loaded) << found.text;
    if (found.in_one_place && was_read) EXPECT_TRUE(same(dict, expected_)) << found.text;
    const auto now = state_dict(*net);
    if (!was_loaded) EXPECT_TRUE(same(now, before)) << found.text << ": half of it is loaded";
    if (was_loaded && found.in_one_place) EXPECT_TRUE(same(now, expected_)) << found.text;
    if (was_loaded) load_state_dict(*net, before);
    refused += was_loaded ? 0 : 1;
    restore(found);
  }
  EXPECT_GT(refused, count / 3) << "else the damage is none";
  load(*net, folder(), Family::kLlama);
  EXPECT_TRUE(same(state_dict(*net), expected_));
}

}  // namespace damaged_folder_test
}  // namespace smp::hf
