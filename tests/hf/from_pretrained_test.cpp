// Writes models for from_pretrained_test.py to read: into the folder SMP_HF_FOLDER, or one of its
// own.
#include <cstdlib>

#include "hf/hf_testing.h"

namespace smp::hf {
namespace from_pretrained_test {

class FromPretrained : public FolderTest {
 protected:
  std::string out() const {
    const char* const given = std::getenv("SMP_HF_FOLDER");
    return given != nullptr ? given : folder();
  }
};

TEST_F(FromPretrained, ModelsAreWrittenInEachForm) {
  for (const auto& sample : samples()) {
    const auto own = read(sample.file(), sample.family());
    const auto whole = out() + "/" + sample.name;
    save(own, whole, sample.family(), {.config = sample.config});
    save(own, whole + ".shards", sample.family(), {.config = sample.config, .shard_bytes = 3000});
    save(own, whole + ".bf16", sample.family(),
         {.config = sample.config, .dtype = torch::kBFloat16});
    expect_same_tensors(read(whole + ".shards", sample.family()), own);
    for (const auto& [name, tensor] : read(whole + ".bf16", sample.family())) {
      EXPECT_TRUE(torch::equal(tensor, own.at(name).to(torch::kBFloat16))) << name;
    }
    // A folder that held another form.
    save(own, whole + ".again", sample.family(), {.config = sample.config, .shard_bytes = 3000});
    save(own, whole + ".again", sample.family(), {.config = sample.config});
  }
}

}  // namespace from_pretrained_test
}  // namespace smp::hf
