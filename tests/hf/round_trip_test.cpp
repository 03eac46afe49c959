// Models that transformers wrote, into our names and back: to the bit.
#include "hf/hf_testing.h"
#include "hf/incoming.h"

namespace smp::hf {
namespace round_trip_test {

using testing::UnorderedElementsAreArray;

TEST(Published, NamesAndShapesAreThoseOfTransformers) {
  for (const auto& sample : samples()) {
    SCOPED_TRACE(sample.name);
    const auto file = load_safetensors(sample.file());
    std::vector<std::string> names;
    for (const auto& [name, sizes] : published_tensors(sample.config)) {
      names.push_back(name);
      if (!file.contains(name)) continue;
      EXPECT_EQ(file.at(name).sizes(), c10::IntArrayRef(sizes)) << name;
    }
    EXPECT_THAT(names, UnorderedElementsAreArray(file.names()));
  }
}

class RoundTrip : public FolderTest {
 protected:
  void expect_round_trip(const Sample& sample, const NameMap& names, std::uint64_t shard_bytes) {
    SCOPED_TRACE(sample.name + ", " + std::to_string(shard_bytes));
    const auto own = read(sample.file(), names);
    const auto report =
        save(own, folder(), names, {.config = sample.config, .shard_bytes = shard_bytes});
    EXPECT_EQ(report.rounded, 0);
    expect_same_tensors(load_safetensors(folder()), load_safetensors(sample.file()));
    expect_same_tensors(read(folder(), names), own);
  }
};

TEST_F(RoundTrip, KeepsEveryBitInOneFileAndInSeveral) {
  for (const auto& sample : samples()) {
    for (const std::uint64_t shard_bytes : {1'000'000, 3000, 1}) {
      expect_round_trip(sample, sample.family(), shard_bytes);
    }
  }
}

TEST_F(RoundTrip, KeepsEveryBitOfLayersThatAreCutOtherwise) {
  for (const auto& sample : samples()) {
    if (sample.family() == Family::kLlama || sample.family() == Family::kT5) continue;
    expect_round_trip(sample, NameMap::distributed(sample.family(), "h.{}"), 3000);
  }
}

TEST_F(RoundTrip, TurnsAndCutsWhatGpt2Keeps) {
  const auto file =
      published({{"transformer.h.3.attn.c_attn.weight", torch::arange(12).view({2, 6})},
                 {"transformer.h.3.attn.c_attn.bias", torch::arange(6)}});
  const auto own = read(file, NameMap::distributed(Family::kGpt2, "h.{}"));
  expect_same_tensors(own, {{"h.3.attention.query.weight", torch::tensor({{0, 6}, {1, 7}})},
                            {"h.3.attention.key.weight", torch::tensor({{2, 8}, {3, 9}})},
                            {"h.3.attention.value.weight", torch::tensor({{4, 10}, {5, 11}})},
                            {"h.3.attention.query.bias", torch::tensor({0, 1})},
                            {"h.3.attention.key.bias", torch::tensor({2, 3})},
                            {"h.3.attention.value.bias", torch::tensor({4, 5})}});
  const auto nested = read(file, Family::kGpt2);
  EXPECT_TRUE(torch::equal(nested.at("transformer.h.3.attn.c_attn.weight"),
                           torch::arange(12).view({2, 6}).t()));
}

/// A stage may read some parts of one tensor, and then those of another.
TEST_F(RoundTrip, ReadsPartsInAnyOrder) {
  save({{"transformer.h.0.attn.c_attn.bias", torch::arange(6)},
        {"transformer.h.1.attn.c_attn.bias", torch::arange(6) + 10}},
       folder(), Family::kGpt2);
  const auto names = NameMap::distributed(Family::kGpt2, "h.{}");
  const Incoming incoming(std::make_shared<const PublishedFiles>(folder(), Family::kGpt2), names,
                          {"h.0.attention.key.bias", "h.1.attention.query.bias",
                           "h.0.attention.value.bias", "h.1.attention.key.bias"});
  const std::vector<at::Tensor> expected{torch::tensor({2, 3}), torch::tensor({10, 11}),
                                         torch::tensor({4, 5}), torch::tensor({12, 13})};
  for (const std::size_t i : std::vector<std::size_t>{0, 1, 2, 3, 1, 0}) {
    EXPECT_TRUE(torch::equal(incoming.read(i), expected[i])) << i << ": " << incoming.read(i);
  }
}

TEST_F(RoundTrip, KeepsSixteenBitsOrSaysWhatIsLost) {
  const auto half = torch::tensor({1.0, 0.1}).to(torch::kHalf);
  const auto brain = torch::tensor({1.0, 0.1}).to(torch::kBFloat16);
  const StateDict dict{{"model.norm.weight", half}, {"model.layers.0.x", brain}};
  save(dict, folder(), Family::kLlama);
  expect_same_tensors(load_safetensors(folder()), dict);

  const StateDict wide{
      {"model.norm.weight", torch::tensor({1.0, 0.1, 0.25, double{NAN}, double{INFINITY}})},
      {"ids", torch::arange(3)}};
  const auto report = save(wide, folder(), Family::kLlama, {.dtype = torch::kBFloat16});
  EXPECT_EQ(report.rounded, 1);
  EXPECT_NEAR(report.largest_change, std::abs(0.10009765625 - 0.1) / 0.1, 1e-6);
  const auto written = load_safetensors(folder());
  EXPECT_EQ(written.at("model.norm.weight").scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::equal(written.at("ids"), torch::arange(3)));

  const auto refused = refusal([&] {
    save({{"model.norm.weight", torch::tensor({1.0, 7e4})}}, folder(), Family::kLlama,
         {.dtype = torch::kHalf});
  });
  for (const auto dtype : {torch::kLong, at::kFloat8_e4m3fn}) {
    EXPECT_THAT(refusal([&] { save(wide, folder(), Family::kLlama, {.dtype = dtype}); }),
                testing::HasSubstr("is none of Float, Double, Half and BFloat16"));
  }
  EXPECT_THAT(refused, testing::AllOf(testing::HasSubstr("70000"),
                                      testing::HasSubstr("\"model.norm.weight\"")));
  expect_same_tensors(load_safetensors(folder()), written);  // the old model
  EXPECT_EQ(save(dict, folder(), Family::kLlama, {.dtype = torch::kFloat}).rounded, 0);
}

}  // namespace round_trip_test
}  // namespace smp::hf
