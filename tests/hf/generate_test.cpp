// Text that transformers made of the same weights, token by token: in one process and over stages.
#include "smp/text/generate.h"

#include "api/step/next_tokens.h"
#include "api/two_ranks.h"
#include "hf/hf_testing.h"
#include "models/llama.h"

namespace smp::hf {
namespace generate_test {

using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

models::LlamaConfig net_config(const LlamaConfig& sizes) {
  models::LlamaConfig config;
  config.vocab_size = sizes.vocab_size;
  config.hidden_size = sizes.hidden_size;
  config.intermediate_size = sizes.intermediate_size;
  config.num_hidden_layers = sizes.num_hidden_layers;
  config.num_attention_heads = sizes.num_attention_heads;
  config.num_key_value_heads = sizes.kv_heads();
  config.head_dim = sizes.head_size();
  config.rope = sizes.rope;
  config.tie_word_embeddings = sizes.tie_word_embeddings;
  config.sliding_window = sizes.sliding_window;
  config.qk_norm = sizes.qk_norm();
  config.norm_unit_offset = config.scale_embeddings = sizes.is_gemma();
  if (sizes.is_gemma()) config.activation = nn::GateActivation::kGeluTanh;
  return config;
}

class Generate : public testing::Test {
 protected:
  struct Text {
    Tensor prompt, present, expected;
  };
  Text text(const std::string& name) const {
    const auto prompt = reference_.at(name + ".prompt");
    return {prompt, prompt.ne(0), reference_.at(name + ".tokens").narrow(1, 6, 14)};
  }
  static models::Llama net_of(const Sample& sample) {
    models::Llama net(net_config(sample.config.llama()));
    net->to(torch::kDouble);
    net->eval();
    return net;
  }
  static std::vector<Sample> llamas() {
    auto all = samples();
    std::erase_if(all, [](const Sample& sample) { return sample.family() != Family::kLlama; });
    return all;
  }
  static std::int64_t kept(torch::nn::Module& net) {
    std::int64_t bytes = 0;
    for (const auto& module : net.modules()) {
      if (const auto* own = module->as<nn::GroupedQueryAttentionImpl>())
        bytes += own->cache().bytes();
    }
    return bytes;
  }
  const StateDict reference_ =
      load_safetensors(std::string(SMP_TEST_DATA) + "/generated_reference.safetensors");
  const GenerateOptions options_{.max_new_tokens = 14, .eos_token_id = 1};
};

TEST_F(Generate, IsTransformersGreedyTextInOneProcess) {
  ASSERT_EQ(llamas().size(), 5u);
  for (const auto& sample : llamas()) {
    SCOPED_TRACE(sample.name);
    auto net = net_of(sample);
    load(*net, sample.file(), Family::kLlama);
    const auto [prompt, present, expected] = text(sample.name);
    const auto ours = generate(
        prompt, [&](const auto& tokens, const auto& place) { return net->decode(tokens, place); },
        options_, present);
    EXPECT_TRUE(torch::equal(ours, expected)) << ours << expected;
    EXPECT_EQ(kept(*net), 0);
  }
}

TEST_F(Generate, IsTransformersGreedyTextOverStages) {
  for (const auto& sample : llamas()) {
    for (const int ranks : {2, 3}) {
      for (const int microbatches : {1, 2, 3}) {
        SCOPED_TRACE(sample.name + std::to_string(ranks) + std::to_string(microbatches));
        on_ranks(
            ranks,
            [&] {
              auto net = net_of(sample);
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("model.layers.1", ranks - 1);
              if (ranks == 3) model.set_partition("model.layers.0", 1);
              load(model, sample.file(), Family::kLlama);
              model.eval();
              const auto [prompt, present, expected] = text(sample.name);
              const auto decode = [&](const auto& tokens, const auto& place) {
                return model->decode(tokens, place);
              };
              const bool first = rank() == 0;
              for (int i = 0; i < 2; ++i) {
                const auto ours = generate(first ? prompt : Tensor(), decode, options_,
                                           first ? present : Tensor());
                EXPECT_TRUE(torch::equal(ours, expected)) << rank() << ours << expected;
              }
              EXPECT_EQ(kept(*net), 0);
            },
            microbatches);
      }
    }
  }
}

/// Replicas write texts of their own; ranks may keep what travels, or know the way of each tensor.
TEST_F(Generate, IsTheSameInReplicasAndInEachMode) {
  const Sample sample{"llama3", small_llama3()};
  const auto [prompt, present, expected] = text("llama3");
  for (const int ranks : {2, 4}) {
    for (const std::string mode : {"static", "not fast", "promised", "simple"}) {
      SCOPED_TRACE(mode + std::to_string(ranks));
      smp::Config settings;
      settings.pipeline_parallel_degree = 2;
      settings.microbatches = 2;
      settings.plan_cache = "off";
      settings.static_mode = mode == "static" || mode == "not fast";
      settings.fast_mode = mode != "not fast";
      settings.promised_outputs = mode != "simple";
      if (mode == "simple") settings.pipeline = "simple";
      run_local(
          ranks,
          [&, prompt = prompt, present = present, expected = expected] {
            auto net = net_of(sample);
            DistributedModel model(net);
            model.set_partition("", 0);
            model.set_partition("model.layers.1", 1);
            load(model, sample.file(), Family::kLlama);
            model.eval();
            const auto row = 2 * rdp_rank();  // replicas have rows of their own
            const auto part = [&](const Tensor& all) { return all.narrow(0, row, 1); };
            const auto ours = generate(
                part(prompt),
                [&](const auto& tokens, const auto& place) { return model->decode(tokens, place); },
                options_, part(present));
            EXPECT_TRUE(torch::equal(ours, part(expected))) << ours;
          },
          settings);
    }
  }
}

/// While a job trains: text in between changes nothing of it.
TEST_F(Generate, DisturbsNoTraining) {
  const Sample sample{"llama", small_llama("llama", 4)};
  std::vector<double> losses[2];
  for (const bool between : {false, true}) {
    on_ranks(2, [&] {
      auto net = net_of(sample);
      DistributedModel model(net);
      model.set_partition("", 0);
      model.set_partition("model.layers.1", 1);
      load(model, sample.file(), Family::kLlama);
      DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.1));
      auto train = step([&](const Tensor& tokens) {
        const auto loss = model(tokens);
        model.backward(loss);
        return loss;
      });
      const auto prompt = text("llama").prompt;
      for (int i = 0; i < 3; ++i) {
        model.train();
        model.zero_grad();
        const auto loss = train(prompt).reduce_mean().item<double>();
        if (rank() == 0) losses[between].push_back(loss);
        if (between) {
          model.eval();
          generate(prompt, [&](const auto& tokens, const auto& place) {
            return model->decode(tokens, place);
          });
        }
        optimizer.step();
      }
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0].size(), 3u);
}

/// The same text whatever ranks, microbatches and other rows there are; another for another seed.
TEST_F(Generate, DrawsAlikeInEveryLayout) {
  const Sample sample{"llama", small_llama("llama", 4)};
  GenerateOptions options{.max_new_tokens = 10, .temperature = 1.5, .top_k = 12, .top_p = 0.9};
  const auto [prompt, present, expected] = text("llama");
  auto net = net_of(sample);
  load(*net, sample.file(), Family::kLlama);
  const auto decode = [](auto& model) {
    return [&](const auto& tokens, const auto& place) { return model->decode(tokens, place); };
  };
  const auto alone = generate(prompt, decode(net), options, present);
  const auto two = generate(prompt.narrow(0, 0, 2), decode(net), options, present.narrow(0, 0, 2));
  EXPECT_TRUE(torch::equal(alone.narrow(0, 0, 2), two));
  for (const int microbatches : {1, 3}) {
    on_ranks(
        2,
        [&] {
          auto own = net_of(sample);
          DistributedModel model(own);
          load(model, sample.file(), Family::kLlama);
          model.eval();
          EXPECT_TRUE(torch::equal(generate(prompt, decode(model), options, present), alone));
        },
        microbatches);
  }
  options.seed = 1;
  EXPECT_FALSE(torch::equal(generate(prompt, decode(net), options, present), alone));
}

TEST_F(Generate, DrawsFromWhatTransformersLeaves) {
  const auto scores = reference_.at("sampling.scores"), expected = reference_.at("sampling.left");
  const GenerateOptions options{.temperature = 0.7, .top_k = 9, .top_p = 0.8};
  const auto left = probabilities_left(scores, options);
  EXPECT_LE((left - expected).abs().max().item<double>(), 1e-6);
  // Frequencies of 20,000 tokens: within five deviations.
  constexpr int kDraws = 20000;
  const auto counts = torch::zeros_like(left);
  const auto many = scores.narrow(0, 0, 1).expand({kDraws, -1});
  const auto drawn = next_tokens(many, options);
  const auto frequencies = drawn.bincount({}, 23).to(torch::kDouble) / kDraws;
  const auto deviation = (left[0] * (1 - left[0]) / kDraws).sqrt();
  EXPECT_TRUE(((frequencies - left[0]).abs() <= 5 * deviation).all().item<bool>()) << frequencies;
}

/// Each next token is the last one and 1.
TEST_F(Generate, EndsARowAtAnyOfSeveralTokens) {
  const auto decode = [](const Tensor& tokens, const nn::CachedTokens&) {
    return torch::one_hot(tokens.select(1, -1) + 1, 23).to(torch::kFloat);
  };
  const auto prompt = torch::tensor({0, 5}).unsqueeze(1);
  const auto text =
      generate(prompt, decode, {.max_new_tokens = 9, .eos_token_id = {7, 3}, .pad_token_id = 20});
  EXPECT_TRUE(torch::equal(text, torch::tensor({1, 2, 3, 6, 7, 20}).view({2, 3}))) << text;
  const auto one = generate(prompt, decode, {.max_new_tokens = 4, .eos_token_id = 7});
  EXPECT_TRUE(torch::equal(one, torch::tensor({1, 2, 3, 4, 6, 7, 0, 0}).view({2, 4}))) << one;
}

/// As in transformers: without a word the first token would be drawn each time.
TEST_F(Generate, DrawsNothingFromWhatIsNoNumber) {
  const GenerateOptions options{.temperature = 0.7, .top_k = 3, .top_p = 0.8};
  for (const double odd : {NAN, INFINITY, -INFINITY}) {
    const auto scores = torch::zeros({3, 5});
    const bool all = odd == -INFINITY;
    (all ? scores[1] : scores[1][2]).fill_(odd);
    EXPECT_THAT(refusal([&] { next_tokens(scores, options, 4, 7); }),
                AllOf(HasSubstr("no token of row 5"), HasSubstr("new token 7")));
    EXPECT_EQ(refusal([&] { next_tokens(scores.narrow(0, 2, 1), options); }), "accepted");
  }
  EXPECT_EQ(next_tokens(torch::zeros({0, 5}), options).numel(), 0);
}

/// The result has the rows of the prompt, which pp_rank 0 alone knows.
TEST_F(Generate, WritesNothingOnAllRanks) {
  const Sample sample{"llama", small_llama("llama", 4)};
  const auto prompt = text("llama").prompt;
  const auto nothing_of = [&](auto& model, const Tensor& own) {
    return generate(
        own, [&](const auto& tokens, const auto& place) { return model->decode(tokens, place); },
        {.max_new_tokens = 0});
  };
  auto net = net_of(sample);
  EXPECT_TRUE(torch::equal(nothing_of(net, prompt), torch::empty({3, 0}, torch::kLong)));
  EXPECT_EQ(kept(*net), 0);
  on_ranks(2, [&] {
    auto own = net_of(sample);
    DistributedModel model(own);
    EXPECT_TRUE(torch::equal(nothing_of(model, rank() == 0 ? prompt : Tensor()),
                             torch::empty({3, 0}, torch::kLong)));
  });
}

TEST_F(Generate, RefusesOnAllRanks) {
  const Sample sample{"llama", small_llama("llama", 4)};
  const auto prompt = text("llama").prompt;
  auto right = torch::ones_like(prompt);
  right.index_put_({0, 5}, 0);
  on_ranks(2, [&] {
    auto net = net_of(sample);
    DistributedModel model(net);
    const auto refused = [&](const Tensor& tokens, const Tensor& present,
                             GenerateOptions options = {}) {
      return refused_step<UsageError>(0, [&] {
        generate(
            tokens, [&](const auto& some, const auto& place) { return model->decode(some, place); },
            options, present);
      });
    };
    EXPECT_THAT(refused({}, {}), HasSubstr("the prompt is undefined"));
    EXPECT_THAT(refused({}, {}, {.max_new_tokens = 0}), HasSubstr("the prompt is undefined"));
    EXPECT_THAT(refused(prompt.to(torch::kFloat), {}),
                AllOf(HasSubstr("Float"), HasSubstr("[3, 6]")));
    EXPECT_THAT(refused(prompt, right), HasSubstr("padding on the right"));
    EXPECT_THAT(refused(prompt, right.narrow(1, 0, 5)), HasSubstr("[3, 5]"));
    const auto option = [&](GenerateOptions options) {
      return refusal([&] { generate(prompt, {}, options); });
    };
    EXPECT_THAT(option({.temperature = -1}), HasSubstr("temperature is -1"));
    EXPECT_THAT(option({.top_p = 0}), HasSubstr("top_p is 0"));
    EXPECT_THAT(option({.top_k = -1}), HasSubstr("top_k is -1"));
    EXPECT_THAT(option({.max_new_tokens = -1}), HasSubstr("max_new_tokens is -1"));
  });
}

}  // namespace generate_test
}  // namespace smp::hf
