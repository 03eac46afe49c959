// DistributedTransformerLMHead equals the same model of plain LibTorch: scores and losses, norms
// before and after, token types, masks; trained in every mix; refusals.
#include "smp/tp/distributed_lm_head.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "smp/smp.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"
#include "tp/plain_transformer.h"

namespace smp::tp {
namespace distributed_lm_head_test {

using testing::HasSubstr;

constexpr std::int64_t kTokens = 13, kPositions = 6, kTypes = 3;  // 13 is divided by nothing

TransformerLMHeadOptions small_options() {
  TransformerLMHeadOptions options;
  options.attention = attention_options();
  options.output = output_options();
  options.num_layers = 2;
  options.vocab_size = kTokens;
  options.num_positions = kPositions;
  options.embedding_dropout_prob = 0;
  return options;
}

TransformerLMHeadOptions with_norms_before(TransformerLMHeadOptions options) {
  options.attention.pre_layernorm = options.output.pre_layernorm = true;
  options.attention.post_layernorm = options.output.post_layernorm = false;
  options.attention.causal_mask_size = kPositions;
  options.attention.use_normal_initialization = options.output.use_normal_initialization = true;
  return options;
}

torch::nn::Embedding table(std::int64_t rows, const TransformerLMHeadOptions& options) {
  torch::nn::Embedding made(rows, kHidden);
  const torch::NoGradGuard no_grad;
  if (options.attention.use_normal_initialization) made->weight.normal_(0, 0.02);
  return made;
}

struct PlainModelImpl : torch::nn::Module {
  explicit PlainModelImpl(const TransformerLMHeadOptions& options)
      : vocabulary(register_module("vocabulary", table(kTokens, options))) {
    if (options.num_positions > 0) {
      positions = register_module("positions", table(kPositions, options));
    }
    if (options.num_token_types > 0) {
      types = register_module("types", table(options.num_token_types, options));
    }
    auto attention = options.attention;
    for (int i = 0; i < options.num_layers; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), PlainLayer(attention, options.output)));
      attention.relative_positions.reset();
    }
    if (options.attention.pre_layernorm) {
      last = register_module("norm", norm_of(options.attention));
    }
  }
  at::Tensor hidden(const LanguageInputs& inputs) {
    const auto& tokens = inputs.tokens;
    TransformerState state;
    state.hidden = vocabulary(tokens);
    if (!positions.is_empty()) {
      state.hidden =
          state.hidden +
          positions(inputs.positions.defined() ? inputs.positions : at::arange(tokens.size(1)));
    } else {
      state.positions = inputs.positions;
    }
    if (!types.is_empty()) {
      state.hidden =
          state.hidden + types(inputs.types.defined() ? inputs.types : at::zeros_like(tokens));
    }
    state.mask = inputs.mask;
    state.cross_states = inputs.cross_states;
    state.cross_mask = inputs.cross_mask;
    for (auto& layer : layers) state = layer(state);
    return last.is_empty() ? state.hidden : last(state.hidden);
  }
  at::Tensor scores(const LanguageInputs& inputs) {
    return torch::linear(hidden(inputs), vocabulary->weight);
  }
  at::Tensor losses_of(const LanguageInputs& inputs, const at::Tensor& labels) {
    const auto options = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
    return torch::nn::functional::cross_entropy(scores(inputs).flatten(0, 1), labels.flatten(),
                                                options)
        .view(labels.sizes());
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& mask, const at::Tensor& kinds) {
    return scores({tokens, mask, kinds, {}, {}, {}});
  }
  at::Tensor losses(const at::Tensor& tokens, const at::Tensor& labels, const at::Tensor& mask,
                    const at::Tensor& kinds) {
    return losses_of({tokens, mask, kinds, {}, {}, {}}, labels);
  }
  torch::nn::Embedding vocabulary, positions{nullptr}, types{nullptr};
  std::vector<PlainLayer> layers;
  PlainNorm last{nullptr};
};
TORCH_MODULE(PlainModel);

/// A model as a layer of one argument: mask, types and labels follow from the tokens.
template <class Model>
struct BoundModelImpl : torch::nn::Module {
  BoundModelImpl(const TransformerLMHeadOptions& options, bool with_losses, bool with_inputs)
      : losses(with_losses), inputs(with_inputs), model(register_module("model", Model(options))) {}
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor mask, types;
    if (inputs) {
      mask = (tokens > 8).to(at::kDouble).view({tokens.size(0), 1, 1, -1}) * -1e4;
      types = tokens % kTypes;
    }
    if (losses) return model->losses(tokens, (tokens * 5 + 1) % kTokens, mask, types);
    return model->forward(tokens, mask, types);
  }
  const bool losses, inputs;
  Model model;
};

TEST(DistributedTransformerLMHead, EqualsThePlainModel) {
  for (const int size : {1, 2, 4}) {
    for (int bits = 0; bits < 24; ++bits) {
      const bool losses = bits & 1, inputs = bits & 4;
      auto options = bits & 2 ? with_norms_before(small_options()) : small_options();
      options.num_token_types = inputs ? kTypes : 0;
      options.attention.optimize = options.output.optimize = kLayouts[bits / 8];
      SCOPED_TRACE(testing::Message() << "case " << bits);
      expect_as_plain(
          [&] { return std::make_shared<BoundModelImpl<PlainModel>>(options, losses, inputs); },
          [&] {
            return std::make_shared<BoundModelImpl<nn::DistributedTransformerLMHead>>(
                options, losses, inputs);
          },
          whole_numbers(size, {2, 5}, kTokens), 1e-11, at::kDouble,
          seen_in_parts(options.attention.optimize));
    }
  }
}

enum class Asked { kHidden, kScores, kLosses };

/// With all inputs, which follow from the tokens.
template <class Model>
struct WholeModelImpl : torch::nn::Module {
  WholeModelImpl(const TransformerLMHeadOptions& options, Asked what)
      : asked(what), model(register_module("model", Model(options))) {}
  at::Tensor forward(const at::Tensor& tokens) {
    LanguageInputs inputs;
    inputs.tokens = tokens;
    inputs.positions = (tokens + at::arange(tokens.size(1))) % kPositions;
    inputs.types = tokens % kTypes;
    const auto other = (tokens.narrow(1, 0, 4) * 3 + 1).to(at::kDouble).unsqueeze(-1);
    inputs.cross_states = at::sin(other * at::arange(1, kHidden + 1, at::kDouble));
    inputs.cross_mask = (tokens.narrow(1, 1, 4) > 9).to(at::kDouble).view({-1, 1, 1, 4}) * -1e4;
    if (asked == Asked::kHidden) return model->hidden(inputs);
    if (asked == Asked::kScores) return model->scores(inputs);
    return model->losses_of(inputs, (tokens * 5 + 1) % kTokens);
  }
  const Asked asked;
  Model model;
};

TEST(DistributedTransformerLMHead, TakesPositionsAndAnotherSequence) {
  for (const auto asked : {Asked::kScores, Asked::kLosses}) {
    for (const char* const layout : kLayouts) {
      auto options = with_norms_before(small_options());
      options.num_token_types = kTypes;
      options.attention.cross_attention = true;
      options.attention.optimize = options.output.optimize = layout;
      SCOPED_TRACE(testing::Message() << layout << ", " << static_cast<int>(asked));
      expect_as_plain([&] { return std::make_shared<WholeModelImpl<PlainModel>>(options, asked); },
                      [&] {
                        return std::make_shared<WholeModelImpl<nn::DistributedTransformerLMHead>>(
                            options, asked);
                      },
                      whole_numbers(2, {2, 5}, kTokens), 1e-11, at::kDouble, seen_in_parts(layout));
    }
  }
}

/// Nothing is scored, but the table is read, by its other use.
TEST(DistributedTransformerLMHead, GivesHiddenStatesWithoutScores) {
  auto options = small_options();
  options.num_token_types = kTypes;
  options.attention.cross_attention = true;
  expect_as_plain(
      [&] { return std::make_shared<WholeModelImpl<PlainModel>>(options, Asked::kHidden); },
      [&] {
        return std::make_shared<WholeModelImpl<nn::DistributedTransformerLMHead>>(options,
                                                                                  Asked::kHidden);
      },
      whole_numbers(2, {2, 5}, kTokens), 1e-11);
}

struct LanguageLossImpl : torch::nn::Module {
  explicit LanguageLossImpl(const TransformerLMHeadOptions& options)
      : model(register_module("model", nn::DistributedTransformerLMHead(options))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& labels) {
    return model->losses(tokens, labels, at::Tensor(), at::Tensor()).mean();
  }
  nn::DistributedTransformerLMHead model;
};
SMP_MODULE(LanguageLoss);

enum class Shape { kGpt, kLlama, kT5, kMpt };

/// Heads that T divides, heads of which some share keys, and heads that are padded.
struct Variant {
  const char* layout;
  std::int64_t heads, key_heads;
  Shape shape = Shape::kGpt;
};

/// No layer of today's models has biases, and none a table of positions.
TransformerLMHeadOptions of_today(TransformerLMHeadOptions options, Shape shape) {
  auto& attention = options.attention;
  options.num_positions = 0;
  attention.norm = options.output.norm = shape == Shape::kMpt ? "layer" : "rms";
  attention.bias = attention.output_bias = options.output.bias = false;
  attention.attention_head_size = 4;
  if (shape == Shape::kLlama) attention.rotary = nn::RotaryEmbeddingOptions(4);
  if (shape == Shape::kLlama) options.output.activation = "swiglu";
  if (shape == Shape::kT5) attention.relative_positions = {.num_buckets = 6, .max_distance = 5};
  if (shape == Shape::kT5) attention.attention_scale = 1;
  if (shape == Shape::kMpt) attention.alibi_bias_max = 8;
  return options;
}

TransformerLMHeadOptions options_of(const Variant& variant) {
  auto options = with_norms_before(small_options());
  if (variant.shape != Shape::kGpt) options = of_today(options, variant.shape);
  options.attention.optimize = options.output.optimize = variant.layout;
  options.attention.num_attention_heads = variant.heads;
  options.attention.num_key_value_heads = variant.key_heads;
  return options;
}

constexpr int kSteps = 3;
constexpr std::int64_t kRows = 8;

/// [tokens, labels] of a step, all rows.
std::pair<at::Tensor, at::Tensor> rows_of(int step) {
  const auto tokens = (at::arange(kRows * 5).view({kRows, 5}) * (step + 3)) % kTokens;
  return {tokens, (tokens * 5 + 1) % kTokens};
}

torch::optim::SGD sgd(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.5).momentum(0.9));
}

struct PlainTraining {
  PlainModel model{nullptr};
  std::vector<double> losses;
};

PlainTraining train_plain(const TransformerLMHeadOptions& options) {
  torch::manual_seed(4);
  PlainTraining plain{PlainModel(options), {}};
  plain.model->to(torch::kDouble);
  auto optimizer = sgd(plain.model->parameters());
  for (int step = 0; step < kSteps; ++step) {
    const auto [tokens, labels] = rows_of(step);
    optimizer.zero_grad();
    const auto loss = plain.model->losses(tokens, labels, {}, {}).mean();
    loss.backward();
    optimizer.step();
    plain.losses.push_back(loss.item<double>());
  }
  return plain;
}

/// On one rank of a session. @return what is saved, where that is
StateDict train_sliced(const TransformerLMHeadOptions& options, const std::vector<double>& losses) {
  torch::manual_seed(4);
  LanguageLoss net(options);
  DistributedModel model(net);
  DistributedOptimizer optimizer(model, sgd(net->parameters()));
  auto train = step([&](const at::Tensor& tokens, const at::Tensor& labels) {
    const auto loss = model(tokens, labels);
    model.backward(loss);
    return loss;
  });
  for (int s = 0; s < kSteps; ++s) {
    const auto [tokens, labels] = rows_of(s);
    const auto [index, count] = data_shard();
    const auto part = static_cast<std::size_t>(index);
    optimizer.zero_grad();
    const double own = train(tokens.chunk(count)[part], labels.chunk(count)[part])
                           .reduce_mean()
                           .template item<double>();
    double sum = 0;
    for (const int member : group(Group::kDp)) sum += broadcast(own, member, Group::kDp);
    EXPECT_NEAR(sum / dp_size(), losses[static_cast<std::size_t>(s)], 1e-12);
    optimizer.step();
  }
  return model.state_dict();
}

/// What was saved is what a model of `options` has after loading it.
void expect_loads(const TransformerLMHeadOptions& options, const StateDict& saved) {
  torch::manual_seed(9);
  LanguageLoss other(options);
  DistributedModel loaded(other);
  loaded.load_state_dict(rank() == 0 ? saved : StateDict());
  const auto again = loaded.state_dict();
  if (rank() != 0) return;
  for (const auto& [name, tensor] : saved) EXPECT_TRUE(at::equal(again.at(name), tensor)) << name;
}

class LMHeadTraining : public testing::TestWithParam<Variant> {};

void expect_as_one_process(const Variant& variant, bool prescaled) {
  const auto options = options_of(variant);
  const auto plain = train_plain(options);
  auto other_layout = options;
  other_layout.attention.optimize = other_layout.output.optimize =
      std::string(variant.layout) == "speed" ? "memory" : "speed";
  for (const auto& [ranks, pp, tp] : std::vector<std::tuple<int, int, int>>{
           {2, 1, 2}, {2, 2, 1}, {4, 1, 4}, {4, 2, 2}, {8, 2, 2}}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, pp " << pp << ", tp " << tp);
    Config config;
    config.pipeline_parallel_degree = pp;
    config.tensor_parallel_degree = tp;
    config.microbatches = 2;
    config.prescaled_batch = prescaled;
    config.plan_cache = "off";
    run_local(ranks,
              [&, ranks = ranks] {
                const auto values = train_sliced(options, plain.losses);
                if (ranks <= 4) expect_loads(other_layout, values);
                if (rank() != 0) return;
                for (const auto& item : plain.model->named_parameters()) {
                  expect_near(values.at("model." + item.key()), item.value().detach(), 1e-11,
                              item.key());
                }
              },
              config, {1});
  }
}

TEST_P(LMHeadTraining, IsThatOfOneProcessInEveryMix) { expect_as_one_process(GetParam(), false); }
TEST_P(LMHeadTraining, IsThatOfOneProcessWithAPrescaledBatch) {
  expect_as_one_process(GetParam(), true);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, LMHeadTraining,
    testing::Values(Variant{"speed", 4, 4}, Variant{"memory", 4, 4}, Variant{"speed", 3, 3},
                    Variant{"memory", 3, 3}, Variant{"speed", 4, 1}, Variant{"memory", 6, 3},
                    Variant{"speed", 4, 2, Shape::kLlama}, Variant{"memory", 3, 1, Shape::kLlama},
                    Variant{"speed", 3, 3, Shape::kT5}, Variant{"memory", 4, 4, Shape::kT5},
                    Variant{"speed", 3, 3, Shape::kMpt}, Variant{"memory", 6, 6, Shape::kMpt},
                    Variant{"sequence", 4, 4}, Variant{"sequence", 3, 1, Shape::kLlama},
                    Variant{"sequence", 3, 3, Shape::kT5}, Variant{"sequence", 4, 4, Shape::kMpt}));

TEST(DistributedTransformerLMHead, RefusesWhatDoesNotFit) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int) {
    auto options = small_options();
    options.attention.cross_attention = true;
    nn::DistributedTransformerLMHead crossed(options);
    EXPECT_THAT(refusal<UsageError>([&] {
                  crossed(at::zeros({2, 3}, at::kLong), at::Tensor(), at::Tensor());
                }),
                HasSubstr("layers have cross-attention; give them cross_states"));
    options = small_options();
    options.output.hidden_size = 16;
    EXPECT_THAT(refusal<UsageError>([&] { nn::DistributedTransformerLMHead model(options); }),
                HasSubstr("hidden_size is 8 in attention and 16 in output"));
    nn::DistributedTransformerLMHead model(small_options());
    const auto tokens = [](std::int64_t length) { return at::zeros({2, length}, at::kLong); };
    EXPECT_THAT(refusal<UsageError>([&] { model(tokens(7), at::Tensor(), at::Tensor()); }),
                HasSubstr("tokens are [2, 7], expected [batch, at most 6]"));
    EXPECT_THAT(refusal<UsageError>([&] { model(tokens(3), at::Tensor(), tokens(3)); }),
                HasSubstr("token types without num_token_types"));
    options = small_options();
    options.num_positions = 0;
    nn::DistributedTransformerLMHead placeless(options);
    LanguageInputs placed;
    placed.tokens = placed.positions = tokens(3);
    EXPECT_THAT(refusal<UsageError>([&] { placeless->scores(placed); }),
                HasSubstr("no table of them and layers have no rotary positions"));
    LanguageInputs inputs;
    inputs.tokens = tokens(3);
    inputs.cross_states = at::zeros({2, 3, 8});
    EXPECT_THAT(refusal<UsageError>([&] { model->scores(inputs); }),
                HasSubstr("cross_states, but layers have no cross-attention"));
  });
}

}  // namespace distributed_lm_head_test
}  // namespace smp::tp
