// Damaged files into models: taken or refused by all ranks alike, and what is refused changes
// nothing. SMP_DAMAGED_FILES makes as many.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <string>

#include "api/two_ranks.h"
#include "base/files.h"
#include "checkpoint/model_state_testing.h"
#include "support/damaged_files.h"

namespace smp::model_state {
namespace damaged_loads_test {

bool same(const StateDict& a, const StateDict& b) {
  for (const auto& [name, tensor] : a) {
    const auto& other = b.at(name);
    const auto bytes = tensor.contiguous(), others = other.contiguous();
    if (std::memcmp(bytes.const_data_ptr(), others.const_data_ptr(), bytes.nbytes()) != 0) {
      return false;
    }
  }
  return a.names() == b.names();
}

/// The file as another program writes it: without checksums.
std::string without_checksums(std::string file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const auto begin = file.find("\"__metadata__\":{");
  const auto end = file.find("},", begin) + 2;
  file.replace(begin, end - begin, std::string(end - begin, ' '));
  return file;
}

struct Tally {
  int refused = 0, taken = 0, changed = 0;
};

/// On two ranks, each of which reads its part.
Tally load_damaged(const std::string& good, const std::string& path, int files, unsigned seed) {
  Tally tally;
  on_ranks(2, [&] {
    std::mt19937 random(seed);
    DistributedModel model(make_net());
    spread(model);
    model.place();
    auto before = model.state_dict(kAllPpRanks);
    for (int i = 0; i < files; ++i) {
      const auto bytes = damaged(good, random, i % 4 == 0 ? 3 : 1);
      if (rank() == 0) base::write_file(path, bytes);
      barrier();
      const auto text = refusal<Error>([&] { load_safetensors(model, path, i % 3 > 0); });
      const auto after = model.state_dict(kAllPpRanks);
      const bool taken = text == "accepted";
      const auto answers = all_gather(static_cast<std::int64_t>(taken));
      ASSERT_EQ(answers[0], answers[1]) << "file " << i << ": " << text;
      ASSERT_EQ(text.find("another kind of error"), std::string::npos) << "file " << i << text;
      ASSERT_TRUE(taken || same(after, before)) << "file " << i << ": " << text;
      if (rank() == 0) {
        tally.refused += !taken;
        tally.taken += taken;
        tally.changed += taken && !same(after, before);
      }
      before = after;
    }
  });
  return tally;
}

TEST(DamagedLoads, ChangeNothingWhereTheyAreRefused) {
  const auto path = testing::TempDir() + "damaged." + std::to_string(getpid()) + ".safetensors";
  save_safetensors(state_dict(*make_net(9)), path);
  const auto own = base::read_file(path);
  const int files = damaged_files(1'000);
  const auto ours = load_damaged(own, path, files, 1);
  EXPECT_GT(ours.refused, files / 10 * 9);
  const auto others = load_damaged(without_checksums(own), path, files, 2);
  EXPECT_GT(others.refused, files / 4);
  EXPECT_GT(others.changed, files / 10) << "values that nothing guards";
  std::filesystem::remove(path);
}

}  // namespace damaged_loads_test
}  // namespace smp::model_state
