// Parameters that forward writes, in replicas: tables whose rows max_norm shortens are those of one
// process on all samples; what cannot be is refused.
#include <gmock/gmock.h>
#include <torch/nn/functional/embedding.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/refusal.h"
#include "zoo/zoo.h"

namespace smp::zoo {
namespace replica_writes_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kSteps = 4, kMicrobatches = 2, kRows = 4;
constexpr int kWords = 12, kWidth = 6;

// ---- models ------------------------------------------------------------------------------------

enum class Table { kRouted, kPlain, kBag, kFunction, kData, kSliced, kMarked };

/// Looks rows up, [rows, 3] to [rows, kWidth].
struct LookUpImpl : torch::nn::Module {
  explicit LookUpImpl(Table which) : kind(which) {
    auto options = torch::nn::EmbeddingOptions(kWords, kWidth).max_norm(0.8);
    if (kind == Table::kSliced) {
      sliced = register_module("routed", nn::DistributedEmbedding(options));
    }
    if (kind == Table::kMarked) {
      const tensor_parallelism spread;
      routed = register_module("routed", nn::Embedding(options));
    }
    if (kind == Table::kRouted) routed = register_module("routed", nn::Embedding(options));
    if (kind == Table::kPlain) plain = register_module("plain", torch::nn::Embedding(options));
    if (kind == Table::kBag) {
      bag = register_module("bag", nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kWords, kWidth)
                                                        .max_norm(0.8)
                                                        .norm_type(1)
                                                        .mode(torch::kSum)));
    }
    if (kind == Table::kFunction || kind == Table::kData) {
      weight = register_parameter("weight", torch::randn({kWords, kWidth}));
    }
  }
  Tensor forward(const Tensor& words) {
    if (kind == Table::kRouted || kind == Table::kMarked) return routed(words).sum(1);
    if (kind == Table::kSliced) return sliced(words).sum(1);
    if (kind == Table::kPlain) return plain(words).sum(1);
    if (kind == Table::kBag) return bag(words);
    if (kind == Table::kData) {
      const torch::NoGradGuard no_grad;
      auto data = weight.data();
      torch::embedding_renorm_(data, words.reshape({-1}), 0.8, 2);
    }
    auto options = torch::nn::functional::EmbeddingFuncOptions();
    if (kind == Table::kFunction) options.max_norm(0.8).norm_type(3);
    return torch::nn::functional::embedding(words, weight, options).sum(1);
  }
  Table kind;
  nn::Embedding routed{nullptr};
  nn::DistributedEmbedding sliced{nullptr};
  torch::nn::Embedding plain{nullptr};
  nn::EmbeddingBag bag{nullptr};
  Tensor weight;
};
SMP_MODULE(LookUp);

/// Two tables, one on each stage.
struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(Table kind)
      : first(register_module("first", LookUp(kind))),
        second(register_module("second", LookUp(kind))),
        last(register_module("last", nn::Linear(kWidth, 3))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& words) { return last(torch::tanh(first(words)) + second(words)); }
  LookUp first, second;
  nn::Linear last;
};
SMP_MODULE(Words);

Tensor words(int seed, int rows = kRows) { return tokens(seed, kWords, {rows, 3}); }
/// Pushes rows outwards, so that they are too long again and again.
Tensor loss_of(const Tensor& y) { return (y - 3).pow(2).mean(); }

/// What every replica does beside training, on samples of its own.
enum class Evaluates { kNever, kBeforeSteps, kBeforeTheOptimizer, kInTheFirstReplica };

/// Whether replica `r` evaluates in step `s`.
bool evaluates(Evaluates when, int r) {
  return when != Evaluates::kNever && (when != Evaluates::kInTheFirstReplica || r == 0);
}

struct Outcome {
  std::vector<double> losses = std::vector<double>(kSteps, 0.0);  // means over replicas
  std::vector<std::map<std::string, Tensor>> tensors;             // of each replica
  std::vector<int> parts;                                         // its tp_rank
};

struct Layout {
  int stages = 1, ranks = 2, slices = 1;
  bool prescaled = false, sharded = false;
  int microbatches = kMicrobatches;
  const char* pipeline = "interleaved";
  std::uint64_t seed = 7;  // of the order in which ranks run
  int rows() const { return kRows / kMicrobatches * microbatches; }
};

// ---- runs --------------------------------------------------------------------------------------

/// LibTorch alone, on the samples of all replicas.
Outcome in_one_process(Table kind, int replicas, const Layout& layout, Evaluates when) {
  Outcome outcome;
  torch::manual_seed(3);
  Words net(kind);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.5));
  const auto evaluate = [&](int step) {
    const torch::NoGradGuard no_grad;
    for (int r = 0; r < replicas; ++r) {
      if (evaluates(when, r)) net(words(1000 + replicas * step + r));
    }
  };
  for (int step = 0; step < kSteps; ++step) {
    if (when != Evaluates::kBeforeTheOptimizer) evaluate(step);
    optimizer.zero_grad();
    for (int r = 0; r < replicas; ++r) {
      for (const auto& x : words(replicas * step + r, layout.rows()).chunk(layout.microbatches)) {
        const auto loss = loss_of(net(x)) / (layout.microbatches * replicas);
        loss.backward();
        outcome.losses[step] += loss.item<double>();
      }
    }
    if (when == Evaluates::kBeforeTheOptimizer) evaluate(step);
    optimizer.step();
  }
  auto& all = outcome.tensors.emplace_back();
  for (const auto& item : net->named_parameters()) all[item.key()] = item.value().detach();
  return outcome;
}

Config config_of(const Layout& layout) {
  Config config;
  config.pipeline_parallel_degree = layout.stages;
  config.tensor_parallel_degree = layout.slices;
  config.prescaled_batch = layout.prescaled;
  config.shard_optimizer_state = layout.sharded;
  config.microbatches = layout.microbatches;
  config.pipeline = layout.pipeline;
  config.plan_cache = "off";
  config.skip_tracing = true;  // would have all that writes and reads a table on one stage
  return config;
}

Outcome in_replicas(Table kind, const Layout& layout, Evaluates when) {
  Outcome outcome;
  const int replicas = layout.ranks / layout.stages;
  outcome.tensors.resize(static_cast<std::size_t>(replicas));
  outcome.parts.resize(static_cast<std::size_t>(replicas));
  run_local(layout.ranks,
            [&] {
              torch::manual_seed(3);
              Words net(kind);
              DistributedModel model(net);
              if (layout.stages > 1) model.set_partition("second", 1);
              DistributedOptimizer optimizer(
                  model, torch::optim::SGD(model.parameters(),
                                           torch::optim::SGDOptions(0.2).momentum(0.5)));
              auto train = smp::step([&](const Tensor& x) {
                const auto loss = loss_of(model(x));
                model.backward(loss);
                return loss;
              });
              auto forward = smp::step([&](const Tensor& x) { return model(x); });
              const auto [own, count] = data_shard();
              const auto evaluate = [&, own = own, count = count](int step) {
                const torch::NoGradGuard no_grad;
                if (evaluates(when, own)) forward(words(1000 + count * step + own));
              };
              model.place();
              for (int step = 0; step < kSteps; ++step) {
                if (when != Evaluates::kBeforeTheOptimizer) evaluate(step);
                optimizer.zero_grad();
                const auto batch = words(count * step + own, layout.rows());
                const auto loss = train(batch).reduce_mean().item<double>();
                if (pp_rank() == 0) outcome.losses[step] += loss / dp_size();
                if (when == Evaluates::kBeforeTheOptimizer) evaluate(step);
                optimizer.step();
              }
              outcome.parts[static_cast<std::size_t>(dp_rank())] = tp_rank();
              auto& tensors = outcome.tensors[static_cast<std::size_t>(dp_rank())];
              for (const auto& [name, tensor] : model.local_named_parameters()) {
                tensors[name] = tensor.detach().clone();
              }
            },
            config_of(layout), {.seed = layout.seed});
  return outcome;
}

/// Returns the part of a whole tensor that has the shape of `own`.
Tensor part_of(const Tensor& whole, const Tensor& own, const Layout& layout, int part) {
  return own.sizes() == whole.sizes() ? whole : whole.chunk(layout.slices, 1)[part];
}

void expect_as_in_one_process(Table kind, const Layout& layout,
                              Evaluates when = Evaluates::kNever) {
  SCOPED_TRACE(testing::Message() << "table " << static_cast<int>(kind) << ", " << layout.ranks
                                  << " ranks, " << layout.stages << " stages, " << layout.slices
                                  << " slices, evaluates " << static_cast<int>(when));
  const int batches = layout.ranks / layout.stages / (layout.prescaled ? layout.slices : 1);
  const auto plain = kind == Table::kSliced || kind == Table::kMarked ? Table::kRouted : kind;
  const auto reference = in_one_process(plain, batches, layout, when);
  const auto ours = in_replicas(kind, layout, when);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(ours.losses[step], reference.losses[step], 1e-12) << "step " << step;
  }
  for (std::size_t i = 0; i < ours.tensors.size(); ++i) {
    ASSERT_EQ(ours.tensors[i].size(), reference.tensors[0].size());
    const int part = ours.parts[i];
    const auto first = static_cast<std::size_t>(
        std::find(ours.parts.begin(), ours.parts.end(), part) - ours.parts.begin());
    for (const auto& [name, tensor] : ours.tensors[i]) {
      const auto expected = part_of(reference.tensors[0].at(name), tensor, layout, part);
      EXPECT_LE((tensor - expected).abs().max().item<double>(), 1e-12) << name;
      EXPECT_TRUE(torch::equal(tensor, ours.tensors[first].at(name))) << name << " in replicas";
    }
  }
}

// ---- rows that max_norm shortens ---------------------------------------------------------------

TEST(ReplicaWrites, OfRowsAreThoseOfOneProcess) {
  for (const auto kind :
       {Table::kRouted, Table::kPlain, Table::kBag, Table::kFunction, Table::kData}) {
    expect_as_in_one_process(kind, {.ranks = 3});
    expect_as_in_one_process(kind, {.stages = 2, .ranks = 4});
  }
}

TEST(ReplicaWrites, OfRowsAreThoseOfOneProcessWhereOtherModulesAreSliced) {
  for (const bool prescaled : {false, true}) {
    expect_as_in_one_process(Table::kRouted, {.ranks = 2, .slices = 2, .prescaled = prescaled});
    expect_as_in_one_process(Table::kPlain,
                             {.stages = 2, .ranks = 8, .slices = 2, .prescaled = prescaled});
  }
}

/// Ranks have parts of rows; other replicas have the same parts.
TEST(ReplicaWrites, OfRowsInPartsAreThoseOfOneProcess) {
  for (const bool prescaled : {false, true}) {
    for (const auto kind : {Table::kSliced, Table::kMarked}) {
      expect_as_in_one_process(kind, {.ranks = 2, .slices = 2, .prescaled = prescaled});
      expect_as_in_one_process(kind, {.ranks = 4, .slices = 2, .prescaled = prescaled});
    }
    expect_as_in_one_process(Table::kSliced,
                             {.ranks = 4, .slices = 2, .prescaled = prescaled, .sharded = true});
    expect_as_in_one_process(Table::kSliced, {.ranks = 3, .slices = 3, .prescaled = prescaled});
  }
  for (const auto when : {Evaluates::kBeforeSteps, Evaluates::kBeforeTheOptimizer}) {
    expect_as_in_one_process(Table::kSliced, {.ranks = 4, .slices = 2}, when);
  }
}

/// Ranks come to the look-ups of their microbatches in different orders, and look rows up again.
TEST(ReplicaWrites, OfRowsInPartsAreThoseOfOneProcessInAnyOrder) {
  for (const char* pipeline : {"interleaved", "simple"}) {
    for (const int stages : {1, 2}) {
      for (const std::uint64_t seed : {1, 2, 3}) {
        Layout layout{.stages = stages, .ranks = 4 * stages, .slices = 2, .microbatches = 6};
        layout.pipeline = pipeline;
        layout.seed = seed;
        layout.prescaled = seed == 2;
        expect_as_in_one_process(Table::kSliced, layout);
      }
    }
  }
}

/// Of a step that fails on some rank no rank keeps what it has shortened, so that parts of a row
/// stay those of one row. Without gradients the other replica does not hear of it.
void expect_as_before_a_failed_step(int failing, bool grad) {
  run_local(4,
            [&] {
              torch::manual_seed(3);
              LookUp net(Table::kSliced);
              DistributedModel model(net);
              bool fails = false;
              auto act = smp::step([&](const Tensor& x) {
                const auto y = model(x).sum();
                const bool here =
                    rdp_rank() == 0 && tp_rank() == failing && current_microbatch() == 1;
                if (fails && here) throw std::runtime_error("no more");
                if (grad) model.backward(y);
              });
              const torch::AutoGradMode mode(grad);
              act(torch::zeros({2, 3}, torch::kLong));  // microbatches may overlap from now on
              const auto before = net->sliced->weight.detach().clone();
              if (grad || rdp_rank() == 0) {
                fails = true;
                EXPECT_THROW(act(words(5)), std::exception);
                EXPECT_TRUE(torch::equal(net->sliced->weight.detach(), before));
                fails = false;
              }
              act(torch::full({2, 3}, 4, torch::kLong));
              EXPECT_FALSE(torch::equal(net->sliced->weight.detach()[4], before[4]));
            },
            config_of({.ranks = 4, .slices = 2}), {.seed = 2});
}

TEST(ReplicaWrites, OfRowsInPartsEndWithAStepThatFails) {
  for (const int failing : {0, 1}) {
    expect_as_before_a_failed_step(failing, true);
    expect_as_before_a_failed_step(failing, false);
  }
}

TEST(ReplicaWrites, OfRowsAreThoseOfOneProcessWithShardedState) {
  expect_as_in_one_process(Table::kRouted, {.ranks = 2, .sharded = true});
}

/// Replicas do not meet in evaluations.
TEST(ReplicaWrites, OfRowsInEvaluationsAreThoseOfOneProcess) {
  for (const auto when :
       {Evaluates::kBeforeSteps, Evaluates::kBeforeTheOptimizer, Evaluates::kInTheFirstReplica}) {
    expect_as_in_one_process(Table::kRouted, {.ranks = 2}, when);
    expect_as_in_one_process(Table::kPlain, {.stages = 2, .ranks = 4}, when);
  }
}

/// A replica without a batch gets the rows all the same.
TEST(ReplicaWrites, OfRowsReachReplicasThatHaveNoBatch) {
  std::vector<Tensor> tables(2);
  run_local(2,
            [&] {
              torch::manual_seed(3);
              LookUp net(Table::kRouted);
              DistributedModel model(net);
              auto train = smp::step([&](const Tensor& x) { model.backward(model(x).sum()); });
              Join join;
              for (int round = 0; join.next(dp_rank() == 0 ? round < 2 : round < 1); ++round) {
                train(torch::full({2, 3}, 4 * round + dp_rank(), torch::kLong));
              }
              tables[static_cast<std::size_t>(dp_rank())] = net->routed->weight.detach().clone();
            },
            config_of({}), {.seed = 2});
  EXPECT_TRUE(torch::equal(tables[0], tables[1]));
  const auto norms = tables[1].norm(2, 1);
  for (const int row : {0, 1, 4}) EXPECT_LE(norms[row].item<double>(), 0.8001) << row;
  EXPECT_GT(norms[7].item<double>(), 0.9) << "nobody has read it";
}

// ---- what is refused ---------------------------------------------------------------------------

/// Words whose table does something else as well.
struct OddImpl : torch::nn::Module {
  using Act = std::function<Tensor(OddImpl&, const Tensor& words)>;
  explicit OddImpl(Act with)
      : table(register_module(
            "table", nn::Embedding(torch::nn::EmbeddingOptions(kWords, kWidth).max_norm(0.8)))),
        weight(register_parameter("weight", torch::ones({kWidth, kWidth}))),
        act(std::move(with)) {}
  Tensor forward(const Tensor& words) { return act(*this, words); }
  nn::Embedding table;
  Tensor weight;
  Act act;
};
SMP_MODULE(Odd);

struct OddNetImpl : torch::nn::Module {
  explicit OddNetImpl(OddImpl::Act act)
      : odd(register_module("odd", Odd(std::move(act)))),
        last(register_module("last", nn::Linear(kWidth, 2))) {}
  Tensor forward(const Tensor& words) { return last(odd(words)); }
  Odd odd;
  nn::Linear last;
};
SMP_MODULE(OddNet);

/// @return what the replicas of `odd` say of the first steps, on two stages; empty: nothing
std::vector<std::string> refusals(const OddImpl::Act& act, bool grad = true) {
  std::vector<std::string> texts(2);
  run_local(4,
            [&] {
              torch::manual_seed(3);
              OddNet net(act);
              DistributedModel model(net);
              model.set_partition("odd", 1);
              auto train = smp::step([&](const Tensor& x) {
                const auto loss = model(x).sum();
                if (loss.requires_grad()) model.backward(loss);
              });
              const torch::AutoGradMode mode(grad);
              for (int step = 0; step < 2; ++step) {
                try {
                  train(words(2 * step + dp_rank()));
                } catch (const std::exception& error) {
                  if (pp_rank() == 1) texts[static_cast<std::size_t>(dp_rank())] = error.what();
                  return;
                }
              }
            },
            config_of({.stages = 2, .ranks = 4}), {.seed = 5});
  return texts;
}

void expect_refused(const OddImpl::Act& act, const std::string& text, bool grad = true) {
  const auto said = refusals(act, grad);
  EXPECT_THAT(said, testing::Each(HasSubstr(text)));
}

TEST(ReplicaWrites, OfWeightsAreRefusedInEveryReplica) {
  const auto names_it = "parameter 'odd.weight' was written while a step ran";
  for (const bool grad : {true, false}) {
    expect_refused(
        [](OddImpl& odd, const Tensor& words) {
          {
            const torch::NoGradGuard no_grad;
            odd.weight.mul_(0.9);
          }
          return odd.table(words).mean(1).matmul(odd.weight);
        },
        names_it, grad);
    expect_refused(
        [](OddImpl& odd, const Tensor& words) {
          odd.weight.data().add_(odd.table(words).mean().item<float>());
          return odd.table(words).mean(1).matmul(odd.weight);
        },
        names_it, grad);
  }
}

TEST(ReplicaWrites, OfATableByOtherCodeAreRefused) {
  expect_refused(
      [](OddImpl& odd, const Tensor& words) {
        const auto y = odd.table(words).mean(1);
        odd.table->weight.data()[0].fill_(7);
        return y.matmul(odd.weight);
      },
      "parameter 'odd.table.weight'");
}

TEST(ReplicaWrites, TablesAreForLookUpsOnly) {
  for (const auto& read : std::vector<std::function<Tensor(const Tensor&)>>{
           [](const Tensor& table) { return table.pow(2).sum(); },
           [](const Tensor& table) { return table.t().sum(); },
           [](const Tensor& table) { return table.detach().sum(); },
           [](const Tensor& table) { return table[3].sum(); },
       }) {
    const auto said = refusals([&](OddImpl& odd, const Tensor& words) {
      const auto y = odd.table(words).mean(1).matmul(odd.weight);
      return y + read(odd.table->weight);
    });
    EXPECT_THAT(said,
                testing::Each(AllOf(HasSubstr("parameter 'odd.table.weight' is used by aten::"),
                                    HasSubstr("optimizer.step()"))));
  }
}

/// Nothing is written, and forms may be asked for.
TEST(ReplicaWrites, AreNotSeenWhereThereAreNone) {
  const auto said = refusals([](OddImpl& odd, const Tensor& words) {
    const auto zeros = torch::zeros_like(odd.table->weight);
    return odd.table(words).mean(1).matmul(odd.weight) + zeros.size(1);
  });
  EXPECT_THAT(said, testing::Each(std::string()));
}

TEST(ReplicaWrites, InTwoWaysAreRefused) {
  expect_refused(
      [](OddImpl& odd, const Tensor& words) {
        auto options = torch::nn::functional::EmbeddingFuncOptions();
        const auto y = torch::nn::functional::embedding(words, odd.table->weight,
                                                        options.max_norm(0.5).norm_type(1));
        return (y + odd.table(words)).mean(1).matmul(odd.weight);
      },
      "shortened in two ways");
}

TEST(ReplicaWrites, OfRowsThatEachLookUpShortensAreRefused) {
  expect_refused(
      [](OddImpl& odd, const Tensor& words) {
        auto options = torch::nn::functional::EmbeddingFuncOptions();
        return torch::nn::functional::embedding(words, odd.table->weight,
                                                options.max_norm(0.5).norm_type(0))
            .mean(1)
            .matmul(odd.weight);
      },
      "norm_type 0 shortens a row again at each look-up");
}

/// Tables may be read between steps, and after the last one.
TEST(ReplicaWrites, LeaveTablesAsTheyWere) {
  run_local(2,
            [&] {
              torch::manual_seed(3);
              LookUp net(Table::kRouted);
              DistributedModel model(net);
              const auto keys = net->routed->weight.key_set();
              auto train = smp::step([&](const Tensor& x) { model.backward(model(x).sum()); });
              for (int step = 0; step < 2; ++step) {
                train(words(step));
                EXPECT_EQ(net->routed->weight.key_set(), keys);
                EXPECT_TRUE(net->routed->weight.pow(2).sum().item<double>() > 0);
              }
            },
            config_of({}), {.seed = 2});
}

}  // namespace replica_writes_test
}  // namespace smp::zoo
