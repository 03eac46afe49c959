// Steps of replicas: what they share, what they leave alone, and how they end when replicas differ.
#include <gmock/gmock.h>

#include <filesystem>
#include <map>

#include "support/refusal.h"
#include "zoo/zoo.h"

namespace smp::zoo {
namespace replica_steps_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kReplicas = 2;

Config two_stages() {
  Config config;
  config.pipeline_parallel_degree = 2;
  config.microbatches = 2;
  config.auto_partition = false;
  config.default_partition = 0;
  return config;
}

/// Runs `rank_main` on the ranks of two replicas of two stages each.
void in_replicas(const std::function<void()>& rank_main, const Config& config = two_stages()) {
  run_local(config.pipeline_parallel_degree.value() * kReplicas, rank_main, config, {5});
}

std::string error_in_replicas(const std::function<void()>& rank_main) {
  try {
    in_replicas(rank_main);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

/// 3 -> 1 over two stages. Float64.
struct PairImpl : torch::nn::Module {
  PairImpl()
      : first(register_module("first", nn::Linear(3, 4))),
        second(register_module("second", nn::Linear(4, 1))),
        third(register_module("third", nn::Linear(4, 1))),
        unused(register_module("unused", nn::Linear(1, 1))) {
    to(torch::kDouble);
  }
  /// `third` takes part where `with_third`.
  Tensor forward(const Tensor& x, bool with_third) {
    const auto y = torch::tanh(first(x));
    return with_third ? second(y) + third(y) : second(y);
  }
  nn::Linear first, second, third, unused;
};
SMP_MODULE(Pair);

Pair make_pair(int seed = 1) {
  torch::manual_seed(seed);
  return Pair();
}

/// A pair in this replica, and how it is trained.
struct Trainer {
  explicit Trainer(int seed = 1, const std::string& loss = "mean")
      : net(make_pair(seed)),
        model(net),
        optimizer(model, torch::optim::SGD(net->parameters(), 0.1)),
        options() {
    options.loss = loss;
    model.set_partition("second", 1);
    model.set_partition("third", 1);
  }
  Tensor train(const Tensor& x, bool with_third = true) {
    auto body = smp::step(
        [&](Tensor part) {
          auto loss = model(part, with_third).pow(2);
          loss = options.loss == "sum" ? loss.sum() : loss.mean();
          model.backward(loss);
          return loss;
        },
        options);
    return body(x).reduce_mean();
  }
  Pair net;
  DistributedModel<Pair> model;
  DistributedOptimizer<torch::optim::SGD> optimizer;
  StepOptions options;
};

Tensor rows_of(int replica, int step = 0, int rows = 4) {
  return numbers(10 * step + replica, {rows, 3});
}

using Gradients = std::map<std::string, Tensor>;

/// Of one process with plain LibTorch, by `loss` of the pair.
Gradients reference(const std::function<Tensor(Pair&)>& loss) {
  auto pair = make_pair();
  loss(pair).backward();
  Gradients gradients;
  for (const auto& item : pair->named_parameters()) gradients[item.key()] = item.value().grad();
  return gradients;
}

void expect_gradients(const DistributedModelBase& model, const Gradients& expected) {
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    const auto& wanted = expected.at(name);
    ASSERT_EQ(parameter.grad().defined(), wanted.defined()) << name << " on rank " << rank();
    if (wanted.defined()) {
      EXPECT_TRUE(torch::allclose(parameter.grad(), wanted, 1e-12, 1e-13))
          << name << " on rank " << rank();
    }
  }
}

/// The mean of squares over rows of all replicas.
Tensor mean_of_squares(Pair& pair, const std::vector<Tensor>& batches) {
  return pair->forward(torch::cat(batches), true).pow(2).mean();
}

TEST(ReplicaSteps, AverageByRowsOfTheGlobalBatch) {
  const auto expected = reference([](Pair& pair) {
    return mean_of_squares(pair, {rows_of(0, 0, 6), rows_of(1, 0, 2)});
  });
  in_replicas([&] {
    Trainer trainer;
    trainer.train(rows_of(dp_rank(), 0, dp_rank() == 0 ? 6 : 2));
    expect_gradients(trainer.model, expected);
  });
}

TEST(ReplicaSteps, AddUpASum) {
  const auto expected = reference([](Pair& pair) {
    return pair->forward(torch::cat({rows_of(0), rows_of(1)}), true).pow(2).sum();
  });
  in_replicas([&] {
    Trainer trainer(1, "sum");
    trainer.train(rows_of(dp_rank()));
    expect_gradients(trainer.model, expected);
  });
}

TEST(ReplicaSteps, CountAParameterThatSomeDoNotUseAsZero) {
  const auto expected = reference([](Pair& pair) {
    const auto with = pair->forward(rows_of(0), true).pow(2).mean();
    return (with + pair->forward(rows_of(1), false).pow(2).mean()) / 2;
  });
  ASSERT_FALSE(expected.at("unused.weight").defined());
  in_replicas([&] {
    Trainer trainer;
    trainer.train(rows_of(dp_rank()), /*with_third=*/dp_rank() == 0);
    expect_gradients(trainer.model, expected);
  });
}

TEST(ReplicaSteps, AccumulateOnWhatWasAveragedBefore) {
  const auto expected = reference([](Pair& pair) {
    return mean_of_squares(pair, {rows_of(0, 0), rows_of(1, 0)}) +
           mean_of_squares(pair, {rows_of(0, 1), rows_of(1, 1)});
  });
  in_replicas([&] {
    Trainer trainer;
    for (int step = 0; step < 2; ++step) trainer.train(rows_of(dp_rank(), step));
    expect_gradients(trainer.model, expected);
  });
}

TEST(ReplicaSteps, LeaveGradientsAloneUnderNoSync) {
  const auto expected = reference([](Pair& pair) {
    Tensor sum = mean_of_squares(pair, {rows_of(0, 0), rows_of(1, 0)});
    for (int step = 1; step < 3; ++step) {
      sum = sum + mean_of_squares(pair, {rows_of(0, step), rows_of(1, step)});
    }
    return sum;
  });
  in_replicas([&] {
    const auto own = reference([](Pair& pair) {
      return mean_of_squares(pair, {rows_of(dp_rank(), 0)}) +
             mean_of_squares(pair, {rows_of(dp_rank(), 1)});
    });
    Trainer trainer;
    {
      const auto apart = trainer.model.no_sync();
      for (int step = 0; step < 2; ++step) trainer.train(rows_of(dp_rank(), step));
      expect_gradients(trainer.model, own);
    }
    trainer.train(rows_of(dp_rank(), 2));
    expect_gradients(trainer.model, expected);
  });
}

TEST(ReplicaSteps, StartFromTheValuesOfTheFirstReplica) {
  const auto whole = make_pair(40)->named_parameters();
  auto config = two_stages();
  config.initial_values = "first";
  in_replicas(
      [&] {
        Trainer trainer(40 + dp_rank());
        trainer.model.place();
        for (const auto& [name, parameter] : trainer.model.local_named_parameters()) {
          EXPECT_TRUE(torch::equal(parameter, whole[name])) << name << " on rank " << rank();
        }
      },
      config);
}

TEST(ReplicaSteps, NameTheReplicaThatHasFewerBatches) {
  const auto text = error_in_replicas([] {
    Trainer trainer;
    for (int step = 0; step < (dp_rank() == 0 ? 5 : 4); ++step) {
      trainer.train(rows_of(dp_rank(), step));
    }
  });
  EXPECT_THAT(text, AllOf(HasSubstr("rank 0: step 5 of this replica has none in another"),
                          HasSubstr("waits for rank 2, but rank 2 left after step 4"),
                          HasSubstr("the same number of batches")));
}

TEST(ReplicaSteps, FailEverywhereIfOneReplicaFails) {
  in_replicas([] {
    Trainer trainer;
    const auto body = [&](Tensor x) {
      if (dp_rank() == 1) throw std::out_of_range("no such sample");
      auto loss = trainer.model(x, true).pow(2).mean();
      trainer.model.backward(loss);
      return loss;
    };
    try {
      smp::step(body)(rows_of(0));
      ADD_FAILURE() << "rank " << rank() << " threw nothing";
    } catch (const std::out_of_range& error) {
      EXPECT_THAT(error.what(), HasSubstr("no such sample"));
      if (rank() == 0) {
        EXPECT_THAT(error.what(), HasSubstr("replica 1 (rank 2) failed in this step"));
      }
    }
    trainer.optimizer.zero_grad();
    trainer.train(rows_of(dp_rank()));
    expect_gradients(trainer.model, reference([](Pair& pair) {
                       return mean_of_squares(pair, {rows_of(0), rows_of(1)});
                     }));
  });
}

TEST(ReplicaSteps, NameTheReplicaWhoseArgumentsAreWrong) {
  in_replicas([] {
    Trainer trainer;
    const auto text = refusal([&] {
      trainer.train(dp_rank() == 1 ? torch::empty({0, 3}, torch::kDouble) : rows_of(0));
    });
    EXPECT_THAT(text, HasSubstr("the batch of this step has no rows"));
    EXPECT_THAT(text, HasSubstr("smp::Join"));
    if (rank() == 0) {
      EXPECT_THAT(text, HasSubstr("replica 1 (rank 2) cannot run this step"));
    }
  });
}

TEST(ReplicaSteps, NameWhatReplicasDoDifferently) {
  EXPECT_THAT(error_in_replicas([] {
                Trainer trainer;
                trainer.optimizer->param_groups()[0].options().set_lr(dp_rank() == 0 ? 0.1 : 0.2);
                trainer.train(rows_of(0));
              }),
              AllOf(HasSubstr("rank 0 and rank 2 did not do the same"), HasSubstr("lr")));
  EXPECT_THAT(error_in_replicas([] {
                Trainer trainer;
                std::optional<NoSync> apart;
                if (dp_rank() == 1) apart.emplace(trainer.model.no_sync());
                trainer.train(rows_of(0));
              }),
              AllOf(HasSubstr("what becomes of gradients"), HasSubstr("added up over replicas"),
                    HasSubstr("kept apart (no_sync) of models 0")));
}

TEST(ReplicaSteps, WithoutGradientsConcernNoOtherReplica) {
  in_replicas([] {
    Trainer trainer;
    trainer.train(rows_of(dp_rank()));
    trainer.optimizer.zero_grad();
    trainer.optimizer.step();  // without gradients
    for (int i = 0; i < 3 * dp_rank(); ++i) {
      const torch::NoGradGuard no_grad;
      auto evaluate = smp::step([&](Tensor x) { return trainer.model(x, true).sum(); });
      evaluate(rows_of(dp_rank()));
    }
    trainer.optimizer.zero_grad();
    trainer.train(rows_of(dp_rank()));
    expect_gradients(trainer.model, reference([](Pair& pair) {
                       return mean_of_squares(pair, {rows_of(0), rows_of(1)});
                     }));
  });
}

/// On every rank, though it is used on stage 0 only, perhaps of one replica: none waits for those
/// that refuse.
void refuse_a_tensor_of_no_model(bool in_all_replicas) {
  in_replicas([in_all_replicas] {
    Trainer trainer;
    auto scale = torch::ones({}, torch::kDouble).requires_grad_();
    DistributedOptimizer optimizer(trainer.model, torch::optim::SGD({scale}, 0.1));
    auto train = smp::step([&](Tensor x) {
      auto y = trainer.model(x, true);
      if (in_all_replicas || dp_rank() == 0) y = y * scale;
      auto loss = y.pow(2).mean();
      trainer.model.backward(loss);
      return loss;
    });
    train(rows_of(dp_rank()));
    EXPECT_THAT(refusal<UnsupportedError>([&] { optimizer.step(); }),
                AllOf(HasSubstr("has a gradient on stage 0"),
                      HasSubstr("not added up over the 2 replicas")));
    trainer.train(rows_of(dp_rank()));
  });
}

TEST(ReplicaSteps, RefuseTensorsOfNoModel) {
  refuse_a_tensor_of_no_model(true);
  refuse_a_tensor_of_no_model(false);
}

TEST(ReplicaSteps, TheFirstReplicaMaySaveAlone) {
  const auto path = std::filesystem::temp_directory_path() / "smp-first-replica.safetensors";
  in_replicas([&] {
    Trainer trainer;
    for (int step = 0; step < 3; ++step) {
      trainer.train(rows_of(dp_rank(), step));
      for (int file = 0; file < 2; ++file) {
        if (dp_rank() == 0) save_safetensors(trainer.model, path.string());
      }
    }
    save_safetensors(trainer.model, path.string());
  });
  EXPECT_EQ(load_safetensors(path.string()).size(), 8u);
  std::filesystem::remove(path);
}

TEST(ReplicaSteps, AnotherReplicaThatSavesAloneIsNamed) {
  const auto text = error_in_replicas([] {
    Trainer trainer;
    trainer.train(rows_of(dp_rank()));
    if (dp_rank() == 1) save_safetensors(trainer.model, "/no/such/folder/file");
  });
  EXPECT_THAT(text, AllOf(HasSubstr("the file of the first replica of WORLD {0, 1, 2, 3} waits for "
                                    "rank 0, but rank 0 left after step 1"),
                          HasSubstr("every rank of the group must call smp::save_safetensors")));
}

TEST(ReplicaSteps, AllReplicasLearnWhatASaveEndedBy) {
  in_replicas([] {
    Trainer trainer;
    trainer.train(rows_of(dp_rank()));
    EXPECT_THAT(
        refusal<ResourceError>([&] { save_safetensors(trainer.model, "/no/such/folder/file"); }),
        HasSubstr("cannot write /no/such/folder/file: "));
    trainer.train(rows_of(dp_rank()));
  });
}

TEST(ReplicaSteps, SaveOneFileFromTheFirstReplica) {
  const auto path = std::filesystem::temp_directory_path() / "smp-replicas.safetensors";
  in_replicas([&] {
    Trainer trainer;
    trainer.train(rows_of(dp_rank()));
    if (dp_rank() == 1) return save_safetensors(trainer.model, "/no/such/folder/file");
    save_safetensors(trainer.model, path.string());
  });
  EXPECT_EQ(load_safetensors(path.string()).size(), 8u);
  std::filesystem::remove(path);
}

/// As where one replica generates more tokens than another before both save.
TEST(ReplicaSteps, SaveAfterEvaluationsOfDifferentLength) {
  const auto path = std::filesystem::temp_directory_path() / "smp-uneven.safetensors";
  in_replicas([&] {
    Trainer trainer;
    auto evaluate = smp::step([&](Tensor x) { return trainer.model(x, true).sum(); });
    for (int step = 0; step < 2; ++step) {
      trainer.train(rows_of(dp_rank(), step));
      const torch::NoGradGuard no_grad;
      for (int i = 0; i <= 2 * dp_rank(); ++i) evaluate(rows_of(dp_rank()));
      save_safetensors(trainer.model, path.string());
      save_safetensors(trainer.model, path.string());
    }
  });
  EXPECT_EQ(load_safetensors(path.string()).size(), 8u);
  std::filesystem::remove(path);
}

/// 3 -> 3 by a complex weight that is stored as its conjugate, as is its gradient after a hook.
struct ConjugateImpl : torch::nn::Module {
  ConjugateImpl()
      : weight(register_parameter("weight", torch::randn({3, 3}, torch::kComplexDouble).conj())) {
    weight.register_hook([](const Tensor& gradient) { return (gradient * 1.5).conj(); });
  }
  Tensor forward(const Tensor& x) {
    return torch::real(torch::matmul(torch::complex(x, x * 0.5), weight));
  }
  Tensor weight;
};
SMP_MODULE(Conjugate);

struct ConjugatesImpl : torch::nn::Module {
  ConjugatesImpl()
      : first(register_module("first", Conjugate())),
        second(register_module("second", Conjugate())) {}
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))); }
  Conjugate first, second;
};
SMP_MODULE(Conjugates);

Conjugates make_conjugates() {
  torch::manual_seed(3);
  return Conjugates();
}

TEST(ReplicaSteps, TakeParametersAndGradientsThatAreLazyConjugates) {
  constexpr int kSteps = 4;
  auto one = make_conjugates();
  torch::optim::SGD plain(one->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    plain.zero_grad();
    one(torch::cat({rows_of(0, step), rows_of(1, step)})).pow(2).mean().backward();
    plain.step();
  }
  for (const bool shard : {false, true}) {
    auto config = two_stages();
    config.shard_optimizer_state = shard;
    in_replicas(
        [&] {
          auto net = make_conjugates();
          DistributedModel model(net);
          model.set_partition("second", 1);
          DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
          auto train = smp::step([&](Tensor x) { model.backward(model(x).pow(2).mean()); });
          for (int step = 0; step < kSteps; ++step) {
            optimizer.zero_grad();
            train(rows_of(dp_rank(), step));
            optimizer.step();
          }
          for (const auto& [name, parameter] : model.local_named_parameters()) {
            EXPECT_TRUE(torch::allclose(parameter, one->named_parameters()[name], 1e-12, 1e-13))
                << name << " on rank " << rank() << (shard ? ", sharded" : "");
          }
        },
        config);
  }
}

}  // namespace replica_steps_test
}  // namespace smp::zoo
