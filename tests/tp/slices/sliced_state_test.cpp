// State of sliced models is that of whole ones: saved at one degree, trained on at another, by
// plain LibTorch too.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "smp/checkpoint.h"
#include "support/full_disk.h"
#include "support/refusal.h"
#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace sliced_state_test {

using testing::HasSubstr;

constexpr int kReplicas = 4;  // data-parallel ranks, whatever the degrees

struct Degrees {
  int tp, pp;
  bool shard = false;  ///< of optimizer state
};

Config config_of(Degrees degrees) {
  Config config;
  config.tensor_parallel_degree = degrees.tp;
  config.pipeline_parallel_degree = degrees.pp;
  config.microbatches = kMicrobatches;
  config.shard_optimizer_state = degrees.shard;
  return config;
}

struct Saved {
  StateDict model, optimizer;
  std::string file;
};

/// Steps `begin` to `end`, from what was saved if anything was; rank 0 alone has it.
Saved train(Degrees degrees, int begin, int end, const Saved& from, const std::string& file) {
  Saved saved;
  run_local(kReplicas * degrees.pp,
            [&] {
              torch::manual_seed(begin == 0 ? 3 : 99);
              SlicedBag net;
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("first", degrees.pp - 1);
              DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto run = step([&](const at::Tensor& tokens, const at::Tensor& targets) {
                model.backward(torch::mse_loss(model(tokens), targets));
              });
              // In a model replica one rank gives it to all, before placement or after.
              const bool gives = mp_rank() == 0;
              if (begin > 0) {
                if (end % 2 == 0) model.place();
                if (from.file.empty()) {
                  model.load_state_dict(gives ? from.model : StateDict());
                } else {
                  load_safetensors(model, from.file);
                }
                load_optimizer_state_dict(model, optimizer, gives ? from.optimizer : StateDict());
              }
              for (int s = begin; s < end; ++s) {
                optimizer.zero_grad();
                const auto [tokens, targets] = samples(s, dp_rank());
                run(tokens, targets);
                optimizer.step();
              }
              auto weights = model.state_dict();
              auto state = optimizer_state_dict(model, optimizer);
              save_safetensors(model, file);
              EXPECT_EQ(weights.empty(), pp_rank() != 0);
              if (rank() == 0) saved = {std::move(weights), std::move(state), file};
            },
            config_of(degrees), {2});
  return saved;
}

std::string path_of(const std::string& name) {
  return testing::TempDir() + name + "." + std::to_string(getpid());
}

/// Names, shapes and values of one process after `kSteps` steps.
void expect_weights(const StateDict& ours, const Training& reference) {
  EXPECT_EQ(ours.size(), 6u);
  for (const auto& [name, tensor] : ours) {
    const auto& expected = reference.tensors.at(name);
    ASSERT_EQ(tensor.sizes(), expected.sizes()) << name;
    EXPECT_LE((tensor - expected).abs().max().item<double>(), 1e-12) << name;
  }
}

TEST(SlicedState, IsSavedAtOneDegreeAndTrainedOnAtAnother) {
  const auto reference = train_in_one_process(kReplicas);
  for (const auto& [before, after] :
       std::vector<std::pair<Degrees, Degrees>>{{{2, 1}, {4, 1}},
                                                {{4, 1}, {2, 2}},
                                                {{2, 2}, {1, 1}},
                                                {{1, 2}, {2, 1}},
                                                {{2, 1, true}, {4, 1}},
                                                {{2, 2, true}, {1, 2, true}},
                                                {{4, 1}, {2, 2, true}},
                                                {{1, 1, true}, {2, 1, true}}}) {
    for (const bool by_file : {false, true}) {
      SCOPED_TRACE(testing::Message()
                   << "tp " << before.tp << ", pp " << before.pp
                   << (before.shard ? ", sharded" : "") << ", then tp " << after.tp << ", pp "
                   << after.pp << (after.shard ? ", sharded" : ""));
      const auto half_path = path_of("half"), end_path = path_of("end");
      auto half = train(before, 0, 2, {}, half_path);
      EXPECT_EQ(half.optimizer.at("state.first.weight.momentum_buffer").sizes(),
                (at::IntArrayRef{8, 8}));
      if (!by_file) half.file.clear();
      const auto whole = train(after, 2, kSteps, half, end_path);
      expect_weights(whole.model, reference);
      expect_weights(load_safetensors(end_path), reference);
      std::filesystem::remove(half_path);
      std::filesystem::remove(end_path);
    }
  }
}

/// The others wait for no rank that has failed.
TEST(SlicedState, ThatCannotBeWrittenIsAnErrorOnAllRanks) {
  for (const auto degrees : {Degrees{2, 1}, Degrees{2, 2}, Degrees{4, 1}}) {
    SCOPED_TRACE(testing::Message() << "tp " << degrees.tp << ", pp " << degrees.pp);
    const auto path = path_of("full");
    run_local(degrees.tp * degrees.pp,
              [&] {
                torch::manual_seed(3);
                SlicedBag net;
                DistributedModel model(net);
                model.set_partition("", 0);
                model.set_partition("first", degrees.pp - 1);
                model.place();
                const auto save = [&] { save_safetensors(model, path); };
                std::optional<support::FullDisk> full;
                if (rank() == 0) full.emplace(64);  // it writes
                EXPECT_THAT(refusal<ResourceError>(save), HasSubstr(path)) << "on rank " << rank();
                EXPECT_FALSE(std::filesystem::exists(path));
                full.reset();
                save();
                if (rank() != 0) return;
                EXPECT_EQ(load_safetensors(path).size(), 6u);
                std::filesystem::remove(path);
              },
              config_of(degrees), {2});
  }
}

/// Each marked, so that they are replaced.
struct MarkedImpl : torch::nn::Module {
  MarkedImpl() {
    const tensor_parallelism spread;
    table = register_module("table", nn::Embedding(6, 4));
    linear = register_module("linear", nn::Linear(4, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return linear(table(x)); }
  nn::Embedding table{nullptr};
  nn::Linear linear{nullptr};
};
SMP_MODULE(Marked);

Marked make_marked(int seed) {
  torch::manual_seed(seed);
  return {};
}

TEST(SlicedState, OfMarkedModulesHasTheNamesOfTheOriginals) {
  const auto expected = make_marked(1);
  run_local(2,
            [&] {
              auto net = make_marked(1);
              DistributedModel model(net);
              ASSERT_EQ(net->table->weight.size(1), 2);
              const auto dict = model.state_dict(kAllPpRanks);
              EXPECT_THAT(dict.names(),
                          testing::ElementsAre("table.weight", "linear.weight", "linear.bias"));
              for (const auto& item : expected->named_parameters()) {
                EXPECT_TRUE(at::equal(dict.at(item.key()), item.value())) << item.key();
              }
              auto other = make_marked(2);
              DistributedModel loaded(other);
              loaded.load_state_dict(dict);
              EXPECT_TRUE(at::equal(other->table->weight, net->table->weight));
              EXPECT_TRUE(at::equal(other->linear->weight, net->linear->weight));
            },
            config_of({2, 1}), {1});
}

TEST(SlicedState, IsRefusedIfItDoesNotFitTheWhole) {
  run_local(2,
            [&] {
              auto net = make_marked(1);
              DistributedModel model(net);
              StateDict narrow;
              for (const auto& [name, values] : model.state_dict()) {
                narrow.insert(name, name == "table.weight" ? at::ones({6, 3}) : values);
              }
              EXPECT_THAT(refusal<UsageError>([&] { model.load_state_dict(narrow); }),
                          HasSubstr("shape of table.weight: [6, 3], but the model has [6, 4]"));
            },
            config_of({2, 1}), {1});
}

/// Every tensor of the state, options included, is that of replicas that keep all of it.
TEST(SlicedState, OfShardedOptimizersIsThatOfOthers) {
  for (const auto& [tp, pp] : std::vector<std::pair<int, int>>{{2, 1}, {4, 1}, {2, 2}}) {
    SCOPED_TRACE(testing::Message() << "tp " << tp << ", pp " << pp);
    const auto path = path_of("state");
    const auto sharded = train({tp, pp, true}, 0, 3, {}, path).optimizer;
    const auto whole = train({tp, pp, false}, 0, 3, {}, path).optimizer;
    std::filesystem::remove(path);
    EXPECT_THAT(sharded.names(), testing::UnorderedElementsAreArray(whole.names()));
    EXPECT_TRUE(sharded.contains("state.embed.weight.momentum_buffer"));
    for (const auto& [name, tensor] : whole) {
      const auto& other = sharded.at(name);
      ASSERT_EQ(other.sizes(), tensor.sizes()) << name;
      EXPECT_TRUE(at::allclose(other, tensor, 0, 1e-13)) << name;
    }
  }
}

}  // namespace sliced_state_test
}  // namespace smp::tp
