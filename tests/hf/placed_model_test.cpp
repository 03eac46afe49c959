// Published models over ranks: which rank reads which bytes, and what is written.
#include "api/two_ranks.h"
#include "gpt/gpt.h"
#include "hf/hf_testing.h"
#include "models/llama.h"

namespace smp::hf {
namespace placed_model_test {

using testing::HasSubstr;
using testing::IsEmpty;

class PlacedModel : public FolderTest {
 protected:
  static models::LlamaConfig net_config() {
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
  static void place(DistributedModelBase& model) {
    model.set_partition("", 0);
    model.set_partition("model.layers.1", 1);
    model.place();
  }
  const Sample sample_{"llama", small_llama("llama", 4)};
  const StateDict expected_ = load_safetensors(sample_.file());
};

TEST_F(PlacedModel, IsLoadedBeforeAndAfterPlacementAndWithoutValues) {
  for (const bool delayed : {false, true}) {
    for (const bool placed : {false, true}) {
      SCOPED_TRACE(std::to_string(delayed) + std::to_string(placed));
      on_ranks(2, [&] {
        std::optional<delay_param_initialization> late;
        if (delayed) late.emplace();
        models::Llama net(net_config());
        late.reset();
        DistributedModel model(net);
        if (placed) place(model);
        const auto report = load(model, sample_.file(), Family::kLlama);
        EXPECT_THAT(report.missing_keys, IsEmpty());
        if (!placed) place(model);
        expect_same_tensors(model.state_dict(kAllPpRanks), expected_);
      });
    }
  }
}

/// Values that a stage does not own may be damaged: it does not read them. Another stage's may not.
TEST_F(PlacedModel, EachStageReadsWhatItOwns) {
  save_safetensors(expected_, path("good.safetensors"));
  std::filesystem::copy_file(path("good.safetensors"), path("damaged.safetensors"));
  const auto place_of = [&](const std::string& name) {  // of the first byte of its values
    const auto values = expected_.at(name).contiguous();
    std::ifstream file(path("good.safetensors"), std::ios::binary);
    const std::string all(std::istreambuf_iterator<char>(file), {});
    return all.find(
        std::string(static_cast<const char*>(values.const_data_ptr()), values.nbytes()));
  };
  {
    std::fstream file(path("damaged.safetensors"), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(place_of("model.layers.0.mlp.up_proj.weight")));
    file << "XXXX";
  }
  for (const int reader_of_damaged : {0, 1}) {
    on_ranks(2, [&] {
      models::Llama net(net_config());
      DistributedModel model(net);
      place(model);
      const auto before = model.state_dict(kAllPpRanks);
      const auto file =
          path(rank() == reader_of_damaged ? "damaged.safetensors" : "good.safetensors");
      const auto text = refusal([&] { load(model, file, Family::kLlama); });
      if (reader_of_damaged == 0) {
        EXPECT_THAT(text, HasSubstr("damaged values of \"model.layers.0.mlp.up_proj.weight\""));
        expect_same_tensors(model.state_dict(kAllPpRanks), before);
      } else {
        EXPECT_EQ(text, "accepted");
        expect_same_tensors(model.state_dict(kAllPpRanks), expected_);
      }
    });
  }
}

TEST_F(PlacedModel, IsWrittenByTheFirstRank) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&] {
      models::Llama net(net_config());
      DistributedModel model(net);
      load(model, sample_.file(), Family::kLlama);
      if (ranks == 2) place(model);
      const auto report =
          save(model, folder(), Family::kLlama, {.config = sample_.config, .shard_bytes = 2000});
      EXPECT_EQ(report.files.empty(), rank() != 0);
    });
    expect_same_tensors(load_safetensors(folder()), expected_);
    EXPECT_EQ(hf::Config::read(folder()).llama().num_hidden_layers, 2);
  }
}

TEST_F(PlacedModel, ErrorsReachAllRanks) {
  on_ranks(2, [&] {
    models::Llama net(net_config());
    DistributedModel model(net);
    place(model);
    const auto lost = rank() == 1 ? path("nowhere") : sample_.file();
    EXPECT_THAT(refusal([&] { load(model, lost, Family::kLlama); }), HasSubstr("nowhere"));
    auto other = small_llama("llama", 4);
    other.intermediate_size = 13;
    EXPECT_THAT(refusal([&] { save(model, folder(), Family::kLlama, {.config = Config(other)}); }),
                HasSubstr("mlp.up_proj.weight: [12, 16], but config.json wants [13, 16]"));
    auto deeper = net_config();
    deeper.num_hidden_layers = 3;
    models::Llama more(deeper);
    DistributedModel third(more);
    EXPECT_THAT(refusal([&] { load(third, sample_.file(), Family::kLlama); }),
                HasSubstr("missing: model.layers.2."));
  });
}

/// Layers over two ranks, stages, replicas, and all of them; the file is that of the whole model.
TEST_F(PlacedModel, SlicesAndReplicasWriteOneWholeModel) {
  const Sample gpt2{"gpt2", small_gpt2()};
  auto published = load_safetensors(gpt2.file());
  published.insert("lm_head.weight", published.at("transformer.wte.weight"));  // a head of its own
  struct Layout {
    int ranks, stages, slices;
  };
  for (const auto& [ranks, stages, slices] :
       {Layout{2, 1, 2}, Layout{2, 1, 1}, Layout{4, 2, 2}, Layout{4, 2, 1}, Layout{4, 1, 2}}) {
    SCOPED_TRACE(std::to_string(ranks) + std::to_string(stages) + std::to_string(slices));
    std::filesystem::remove_all(folder());
    smp::Config settings;
    settings.pipeline_parallel_degree = stages;
    settings.tensor_parallel_degree = slices;
    settings.plan_cache = "off";
    run_local(ranks,
              [&] {
                gpt::Gpt net(gpt::GptConfig{
                    .vocabulary = 23, .length = 10, .width = 8, .heads = 2, .layers = 2});
                DistributedModel model(net);
                load(model, gpt2.file(), gpt::published_names());
                model.place();
                load(model, gpt2.file(), gpt::published_names());
                const auto report = save(model, folder(), gpt::published_names(),
                                         {.config = gpt2.config, .shard_bytes = 3000});
                EXPECT_EQ(report.files.empty(), rank() != 0);
              },
              settings, {1});
    expect_same_tensors(load_safetensors(folder()), published);
    EXPECT_FALSE(hf::Config::read(folder()).gpt2().tie_word_embeddings);
  }
}

}  // namespace placed_model_test
}  // namespace smp::hf
