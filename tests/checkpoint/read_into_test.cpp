// Values of a file straight into the memory of a tensor: its type, and what changes meanwhile.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "checkpoint/safetensors_file.h"
#include "smp/smp.h"
#include "support/refusal.h"

namespace smp::checkpoints {
namespace read_into_test {

using testing::HasSubstr;
using torch::Tensor;

class ReadInto : public testing::Test {
 protected:
  ReadInto() {
    torch::manual_seed(1);
    save_safetensors({{"x", values_}}, path_);
  }
  ~ReadInto() override { std::filesystem::remove(path_); }

  /// A byte of the values, in the file as it is.
  void change() const {
    std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(-3, std::ios::end)
        .put('\x55');
  }
  static Tensor read(const SafetensorsReader& reader) {
    auto target = torch::zeros({1500, 1001});
    reader.read_into(0, target);
    return target;
  }

  const Tensor values_ = torch::randn({1500, 1001});  // of several parts, whatever a part is
  const std::string path_ =
      testing::TempDir() + "read_into." + std::to_string(getpid()) + ".safetensors";
};

TEST_F(ReadInto, IsWhatWasSaved) {
  const SafetensorsReader reader(path_);
  EXPECT_TRUE(torch::equal(read(reader), values_));
  reader.check(0);
  EXPECT_TRUE(torch::equal(read(reader), values_));
  const auto threads = torch::get_num_threads();
  torch::set_num_threads(3);
  EXPECT_TRUE(torch::equal(read(reader), values_));
  torch::set_num_threads(threads);
}

/// As copy_() has it, to the bit.
TEST_F(ReadInto, ConvertsToTheTypeOfTheTensor) {
  const std::vector<torch::Dtype> types{torch::kDouble,        torch::kHalf, torch::kBFloat16,
                                        torch::kFloat8_e4m3fn, torch::kInt,  torch::kBool,
                                        torch::kComplexFloat,  torch::kFloat};
  for (const auto stored : types) {
    if (stored == torch::kBool) continue;  // all of them true
    const auto values = values_.to(stored);
    save_safetensors({{"x", values}}, path_);
    const SafetensorsReader reader(path_);
    reader.check(0);
    for (const auto type : types) {
      if (!c10::canCast(stored, type)) continue;
      auto target = torch::zeros_like(values, type), expected = torch::zeros_like(values, type);
      reader.read_into(0, target);
      expected.copy_(values);
      EXPECT_EQ(std::memcmp(target.const_data_ptr(), expected.const_data_ptr(), target.nbytes()), 0)
          << c10::toString(stored) << " as " << c10::toString(type);
    }
  }
}

TEST_F(ReadInto, NoticesWhatChangedSinceTheCheck) {
  for (const bool converts : {false, true}) {
    save_safetensors({{"x", values_}}, path_);
    const SafetensorsReader reader(path_);
    reader.check(0);
    change();
    EXPECT_THAT(
        refusal([&] {
          reader.read_into(0, torch::zeros({1500, 1001}, converts ? torch::kHalf : torch::kFloat));
        }),
        HasSubstr("damaged values of \"x\": their checksum does not fit"));
    EXPECT_THAT(refusal([&] { reader.check(0); }), HasSubstr("damaged values"));
  }
}

TEST_F(ReadInto, TakesAFileThatWasOnlyTouched) {
  const SafetensorsReader reader(path_);
  reader.check(0);
  std::filesystem::last_write_time(path_, std::filesystem::file_time_type());
  EXPECT_TRUE(torch::equal(read(reader), values_));
}

TEST_F(ReadInto, NoticesAFileThatWasCut) {
  const auto size = std::filesystem::file_size(path_);
  for (const std::uint64_t missing : {1u, 5000u, 4'000'000u}) {
    save_safetensors({{"x", values_}}, path_);
    const SafetensorsReader reader(path_);
    reader.check(0);
    std::filesystem::resize_file(path_, size - missing);
    EXPECT_THAT(refusal([&] { read(reader); }),
                HasSubstr("it ends at byte " + std::to_string(size - missing)));
  }
}

/// Without checksums there is nothing to compare, but for truth values, of which there are two.
TEST_F(ReadInto, ReadsTruthValuesOfOthers) {
  const std::string header =
      R"({"x":{"dtype":"BOOL","shape":[1000000],"data_offsets":[0,1000000]}})";
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  file += header + std::string(1'000'000, '\1');
  base::write_file(path_, file);
  const SafetensorsReader reader(path_);
  reader.check(0);
  auto bytes = torch::zeros({1'000'000}, torch::kBool), numbers = torch::zeros({1'000'000});
  reader.read_into(0, bytes);
  reader.read_into(0, numbers);
  EXPECT_EQ(bytes.sum().item<int>(), 1'000'000);
  EXPECT_EQ(numbers.sum().item<float>(), 1'000'000);
  change();
  for (const auto& target : {bytes, numbers}) {
    EXPECT_THAT(refusal([&] { reader.read_into(0, target); }),
                HasSubstr("truth values other than 0 and 1"));
  }
}

/// Modules of all kinds of memory that a file's values may go to.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    dense = register_module("dense", nn::Linear(300, 400));
    turned = register_parameter("turned", torch::randn({300, 500}).t());
    const auto both = torch::randn({2, 1000});
    first = register_buffer("first", both[0]);
    second = register_buffer("second", both[1]);
    flags = register_buffer("flags", torch::rand({70}) < 0.5);
    count = register_buffer("count", torch::tensor(7));
  }
  Tensor forward(const Tensor& x) { return dense(x); }
  nn::Linear dense{nullptr};
  Tensor turned, first, second, flags, count;
};
SMP_MODULE(Mixed);

Mixed make_mixed(std::uint64_t seed, torch::Dtype type) {
  torch::manual_seed(seed);
  Mixed net;
  net->to(type);
  return net;
}

void expect_same(const StateDict& ours, const StateDict& theirs) {
  for (const auto& [name, tensor] : theirs) {
    EXPECT_EQ(ours.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(ours.at(name), tensor)) << name;
  }
}

/// A file goes where a dict of the same values goes.
TEST(LoadsOfFiles, AreThoseOfDictsWhateverTheTypes) {
  const auto path = testing::TempDir() + "mixed." + std::to_string(getpid()) + ".safetensors";
  for (const auto stored : {torch::kFloat, torch::kBFloat16}) {
    for (const auto type : {torch::kFloat, torch::kHalf, torch::kDouble}) {
      SCOPED_TRACE(std::string(c10::toString(stored)) + " as " + c10::toString(type));
      save_safetensors(state_dict(*make_mixed(2, stored)), path);
      auto expected = make_mixed(1, type);
      load_state_dict(*expected, load_safetensors(path));
      const auto values = state_dict(*expected);
      for (const int stages : {1, 2}) {
        Config config;
        config.pipeline_parallel_degree = stages;
        config.plan_cache = "off";
        run_local(
            stages,
            [&] {
              DistributedModel model(make_mixed(1, type));
              model.set_partition("", 0);
              model.set_partition("dense", stages - 1);
              model.place();
              const auto parameters = model.local_named_parameters();
              std::vector<std::int64_t> versions;
              for (const auto& [name, tensor] : parameters) versions.push_back(tensor._version());
              load_safetensors(model, path);
              expect_same(model.state_dict(kAllPpRanks), values);
              for (std::size_t i = 0; i < parameters.size(); ++i) {
                EXPECT_GT(parameters[i].second._version(), versions[i]) << parameters[i].first;
              }
            },
            config);
      }
    }
  }
  std::filesystem::remove(path);
}

}  // namespace read_into_test
}  // namespace smp::checkpoints
