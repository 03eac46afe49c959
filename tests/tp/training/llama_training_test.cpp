// A plain Llama that is marked trains over ranks as it does in one process: losses, every gradient
// and parameters, in both layouts and in every mix of degrees; what was saved at one goes on at
// another.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <optional>
#include <ostream>

#include "models/llama.h"
#include "smp/smp.h"
#include "smp/tp.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace llama_training_test {

constexpr int kSteps = 3, kMicrobatches = 2;
constexpr std::int64_t kRows = 4, kTokens = 6, kVocabulary = 12;

models::LlamaConfig model_of(std::int64_t heads, std::int64_t keys) {
  models::LlamaConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 8;
  config.intermediate_size = 10;
  config.num_hidden_layers = 3;
  config.num_attention_heads = heads;
  config.num_key_value_heads = keys;
  config.head_dim = 4;
  config.qk_norm = keys == 2;
  config.attention_bias = keys == 1;
  config.initializer_range = 0.3;
  return config;
}

at::Tensor tokens_of(int step, int batch) {
  const auto n = at::arange(kRows * kTokens, at::kLong);
  return at::remainder(n * n + 3 * n + 31 * step + 7 * batch, kVocabulary).view({kRows, kTokens});
}

torch::optim::SGD sgd(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.2).momentum(0.9));
}

using Values = std::map<std::string, at::Tensor>;

/// What one process has after each step.
struct Reference {
  std::vector<double> losses;
  std::vector<Values> gradients;
  Values parameters;
};

Reference train_in_one_process(const models::LlamaConfig& config, int batches) {
  Reference reference;
  torch::manual_seed(3);
  models::LlamaImpl net(config);
  net.to(torch::kDouble);
  auto optimizer = sgd(net.parameters());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double mean = 0;
    for (int batch = 0; batch < batches; ++batch) {
      for (const auto& part : tokens_of(step, batch).chunk(kMicrobatches)) {
        const auto loss = net.forward(part) / (batches * kMicrobatches);
        mean += loss.item<double>();
        loss.backward();
      }
    }
    reference.losses.push_back(mean);
    auto& gradients = reference.gradients.emplace_back();
    for (const auto& item : net.named_parameters()) {
      gradients[item.key()] = item.value().grad().clone();
    }
    optimizer.step();
  }
  for (const auto& item : net.named_parameters()) {
    reference.parameters[item.key()] = item.value().detach();
  }
  return reference;
}

struct Mix {
  int ranks, pp, tp;
  const char* optimize = "speed";
  bool shard = false;  ///< of optimizer state
  bool prescaled = false;
  bool again = false;  ///< layers are computed again

  int batches() const { return ranks / pp / (prescaled ? tp : 1); }
  Config config() const {
    Config config;
    config.pipeline_parallel_degree = pp;
    config.tensor_parallel_degree = tp;
    config.optimize = optimize;
    config.microbatches = kMicrobatches;
    config.shard_optimizer_state = shard;
    config.prescaled_batch = prescaled;
    if (again) config.checkpoint_modules = "DecoderLayer";
    config.plan_cache = "off";
    return config;
  }
};

void PrintTo(const Mix& mix, std::ostream* out) {
  *out << mix.ranks << " ranks, pp " << mix.pp << ", tp " << mix.tp << ", " << mix.optimize
       << (mix.shard ? ", sharded state" : "") << (mix.prescaled ? ", prescaled batch" : "")
       << (mix.again ? ", computed again" : "");
}

/// The part of a whole tensor that this rank has of `parameter`.
at::Tensor own_part(const SlicedParameters& slices, const at::Tensor& parameter,
                    const at::Tensor& whole) {
  const auto slice = slices.find(parameter);
  return slice ? part_of(whole, slice->dim, parameter.size(slice->dim), tp_rank()) : whole;
}

/// The model with its weights, of which every layer is spread.
struct Spread {
  explicit Spread(const models::LlamaConfig& config, int seed = 3) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    net = models::Llama(config);
    net->to(torch::kDouble);
    set_tensor_parallelism(net);
    model.emplace(net);
    model->set_partition("", 0);
    for (const auto* layer : {"model.layers.1", "model.layers.2"}) {
      model->set_partition(layer, pp_size() - 1);
    }
    optimizer.emplace(*model, sgd(model->parameters()));
  }
  double train(int step_number) {
    auto train = step([this](const at::Tensor& tokens) {
      const auto loss = (*model)(tokens);
      model->backward(loss);
      return loss;
    });
    optimizer->zero_grad();
    return train(tokens_of(step_number, data_shard().index)).reduce_mean().item<double>();
  }
  models::Llama net{nullptr};
  std::optional<DistributedModel<models::Llama>> model;
  std::optional<DistributedOptimizer<torch::optim::SGD>> optimizer;
};

void train_and_compare(const models::LlamaConfig& config, const Reference& reference,
                       const Mix& mix) {
  Spread spread(config);
  if (tp_size() > 1) {
    std::vector<std::string> spread_out;
    for (const auto& [path, module] : spread.model->distributed_modules()) {
      spread_out.push_back(path);
    }
    EXPECT_THAT(spread_out, testing::Contains("model.layers.0.self_attn.q_proj"));
  }
  const SlicedParameters slices(*spread.net);
  for (int s = 0; s < kSteps; ++s) {
    const double own = spread.train(s);
    double sum = 0;
    for (const int member : group(Group::kDp)) sum += broadcast(own, member, Group::kDp);
    EXPECT_NEAR(sum / dp_size(), reference.losses[static_cast<std::size_t>(s)], 1e-12);
    for (const auto& [name, parameter] : spread.model->local_named_parameters()) {
      if (mix.shard && !parameter.grad().defined()) continue;  // on the rank where it is stepped
      const auto& whole = reference.gradients[static_cast<std::size_t>(s)].at(name);
      expect_near(parameter.grad(), own_part(slices, parameter, whole), 1e-12,
                  "gradient of " + name);
    }
    spread.optimizer->step();
  }
  const auto values = spread.model->state_dict(kAllPpRanks);
  EXPECT_EQ(values.size(), reference.parameters.size());
  for (const auto& [name, value] : values) {
    expect_near(value, reference.parameters.at(name), 1e-12, name);
  }
}

void expect_as_one_process(const models::LlamaConfig& config, const std::vector<Mix>& mixes) {
  for (const auto& mix : mixes) {
    SCOPED_TRACE(testing::PrintToString(mix) + ", " + std::to_string(config.num_key_value_heads) +
                 " heads of keys");
    const auto reference = train_in_one_process(config, mix.batches());
    run_local(mix.ranks, [&] { train_and_compare(config, reference, mix); }, mix.config(), {1});
  }
}

TEST(LlamaTraining, IsThatOfOneProcess) {
  for (const int keys : {1, 2, 4}) {
    expect_as_one_process(model_of(4, keys), {{2, 1, 2},
                                              {2, 1, 2, "memory"},
                                              {4, 1, 4},
                                              {4, 1, 4, "memory"},
                                              {4, 2, 2},
                                              {4, 2, 2, "memory", true},
                                              {8, 2, 2, "speed", true},
                                              {8, 2, 2, "memory"}});
  }
}

TEST(LlamaTraining, IsThatOfOneProcessWithAPrescaledBatch) {
  for (const int keys : {1, 2, 4}) {
    expect_as_one_process(model_of(4, keys), {{2, 1, 2, "speed", false, true},
                                              {4, 1, 4, "memory", false, true},
                                              {8, 2, 2, "speed", true, true},
                                              {4, 1, 4, "sequence", false, true},
                                              {8, 2, 2, "sequence", true, true},
                                              {4, 1, 2, "sequence"},
                                              {8, 2, 2, "memory", false, true}});
  }
}

TEST(LlamaTraining, IsThatOfOneProcessIfItIsComputedAgain) {
  for (const int keys : {1, 2, 4}) {
    expect_as_one_process(model_of(4, keys), {{2, 1, 2, "speed", false, false, true},
                                              {4, 2, 2, "memory", true, false, true},
                                              {4, 1, 4, "sequence", false, true, true},
                                              {8, 2, 2, "sequence", true, true, true}});
  }
}

/// 7 heads on 2 and on 4 ranks.
TEST(LlamaTraining, IsThatOfOneProcessWithHeadsThatPad) {
  for (const int keys : {1, 7}) {
    expect_as_one_process(model_of(7, keys), {{4, 1, 4},
                                              {4, 1, 4, "memory"},
                                              {4, 2, 2, "speed", true},
                                              {4, 1, 4, "sequence", false, true}});
  }
}

TEST(LlamaTraining, GoesOnAtAnotherDegree) {
  for (const auto& [before, after] : std::vector<std::pair<Mix, Mix>>{
           {{4, 1, 2}, {4, 1, 4, "memory"}}, {{4, 1, 4, "memory", true}, {4, 1, 2}}}) {
    for (const auto& [heads, keys] : std::vector<std::pair<int, int>>{{4, 2}, {7, 7}}) {
      SCOPED_TRACE(testing::PrintToString(before) + ", then " + testing::PrintToString(after));
      const auto config = model_of(heads, keys);
      const auto reference = train_in_one_process(config, before.batches());
      StateDict weights, state;
      run_local(before.ranks,
                [&] {
                  Spread spread(config);
                  spread.train(0);
                  spread.optimizer->step();
                  auto own = spread.model->state_dict();
                  auto own_state = optimizer_state_dict(*spread.model, *spread.optimizer);
                  if (rank() == 0) weights = std::move(own), state = std::move(own_state);
                },
                before.config(), {1});
      EXPECT_EQ(weights.at("model.layers.0.self_attn.k_proj.weight").sizes(),
                (at::IntArrayRef{4 * keys, 8}));
      run_local(after.ranks,
                [&] {
                  Spread spread(config, 99);
                  const bool gives = mp_rank() == 0;
                  spread.model->load_state_dict(gives ? weights : StateDict());
                  load_optimizer_state_dict(*spread.model, *spread.optimizer,
                                            gives ? state : StateDict());
                  for (int s = 1; s < kSteps; ++s) {
                    spread.train(s);
                    spread.optimizer->step();
                  }
                  for (const auto& [name, value] : spread.model->state_dict(kAllPpRanks)) {
                    expect_near(value, reference.parameters.at(name), 1e-12, name);
                  }
                },
                after.config(), {1});
    }
  }
}

}  // namespace llama_training_test
}  // namespace smp::tp
