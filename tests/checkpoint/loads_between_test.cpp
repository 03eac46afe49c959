// What lies between a load and the model: replicas, memory that tensors share, autocast, files that
// change, random numbers of other threads.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/two_ranks.h"

namespace smp {
namespace loads_between_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct PairImpl : torch::nn::Module {
  PairImpl()
      : a(register_module("a", nn::Linear(3, 3))), b(register_module("b", nn::Linear(3, 3))) {}
  Tensor forward(const Tensor& x) { return b(a(x)); }
  nn::Linear a, b;
};
SMP_MODULE(Pair);

Pair make_pair(bool delayed) {
  std::optional<delay_param_initialization> delay;
  torch::manual_seed(3);
  if (delayed) delay.emplace();
  return Pair();
}

StateDict filled(double value) {
  StateDict dict;
  for (const auto& [name, tensor] : state_dict(*make_pair(false))) {
    dict.insert(name, torch::full_like(tensor, value));
  }
  return dict;
}

Config config_of(int stages) {
  Config config;
  config.plan_cache = "off";
  config.skip_tracing = true;
  config.pipeline_parallel_degree = stages;
  return config;
}

// ---- replicas ----------------------------------------------------------------------------------

/// Replicas that load other things would be trained apart.
TEST(LoadsBetween, ReplicasLoadTheSameOrNothing) {
  for (const int stages : {1, 2}) {
    for (const bool placed : {true, false}) {
      run_local(2 * stages,
                [&] {
                  auto net = make_pair(false);
                  DistributedModel model(net);
                  DistributedOptimizer optimizer(model, torch::optim::Adam(net->parameters()));
                  if (placed) model.place();
                  const bool first = dp_rank() == 0;
                  const auto refused = [&](const StateDict& dict, bool strict) {
                    return refusal<UsageError>([&] { model.load_state_dict(dict, strict); });
                  };
                  EXPECT_THAT(refused(filled(first ? 5 : 6), true), HasSubstr("trained apart"));
                  EXPECT_THAT(refused(first ? filled(5) : StateDict(), true),
                              AllOf(HasSubstr("no rank of this replica was given any values"),
                                    Not(HasSubstr("missing"))));
                  EXPECT_THAT(refused(first ? filled(5) : StateDict(), false),
                              HasSubstr("trained apart"));
                  model.place();
                  const auto own = make_pair(false);
                  const auto values = model.state_dict(kAllPpRanks);
                  for (const auto& [name, tensor] : state_dict(*own)) {
                    EXPECT_TRUE(torch::equal(values.at(name), tensor)) << name;
                  }
                  model.load_state_dict(filled(5));
                  EXPECT_EQ(model.state_dict(kAllPpRanks).at("b.bias")[0].item<float>(), 5);
                  const auto state = optimizer_state_dict(model, optimizer, kAllPpRanks);
                  static_cast<void>(refusal<UsageError>([&] {
                    load_optimizer_state_dict(model, optimizer, first ? state : StateDict());
                  }));
                  load_optimizer_state_dict(model, optimizer, state);
                },
                config_of(stages), {.seed = 1});
    }
  }
}

struct SharedImpl : torch::nn::Module {
  SharedImpl()
      : a(register_module("a", nn::DistributedLinear(4, 6))),
        b(register_module("b", nn::DistributedVocabulary(3, 4))),
        c(register_module("c", nn::Linear(4, 4))) {}
  Tensor forward(const Tensor& x) { return c(b->scores(c(x))); }
  nn::DistributedLinear a;
  nn::DistributedVocabulary b;  // 3 rows over 2 ranks: one of them is filled up
  nn::Linear c;
};
SMP_MODULE(Shared);

Shared make_shared_net(std::uint64_t seed) {
  torch::manual_seed(seed);
  return {};
}

StateDict copied(const StateDict& dict) {
  StateDict copy;
  copy.metadata = dict.metadata;
  for (const auto& [name, tensor] : dict) copy.insert(name, tensor.clone());
  return copy;
}

/// Each rank gives back what its local_state_dict() was, slices among it, placed or not.
TEST(LoadsBetween, PartsOfRanksThatShareModulesAreTheirSlices) {
  for (const int stages : {1, 2}) {
    for (const int replicas : {1, 2}) {
      auto config = config_of(stages);
      config.tensor_parallel_degree = 2;
      run_local(2 * stages * replicas,
                [&] {
                  DistributedModel first(make_shared_net(3));
                  first.set_partition("", 0);
                  first.set_partition("b", stages - 1);
                  first.place();
                  const auto part = copied(first.local_state_dict());
                  const auto whole = first.state_dict(kAllPpRanks);
                  for (const bool placed : {true, false}) {
                    DistributedModel second(make_shared_net(4));
                    second.set_partition("", 0);
                    second.set_partition("b", stages - 1);
                    if (placed) second.place();
                    second.load_state_dict(part);
                    second.place();
                    const auto loaded = second.state_dict(kAllPpRanks);
                    ASSERT_EQ(loaded.size(), whole.size());
                    for (const auto& [name, tensor] : whole) {
                      EXPECT_TRUE(torch::equal(loaded.at(name), tensor)) << name;
                    }
                  }
                  const auto refused = [&](const StateDict& dict) {
                    return refusal<UsageError>([&] { first.load_state_dict(dict); });
                  };
                  EXPECT_THAT(refused(tp_rank() == 0 ? part : StateDict()),
                              AllOf(HasSubstr("was given a.weight"),
                                    HasSubstr("its own local_state_dict()")));
                  auto swapped = copied(part);
                  swapped.metadata = {{"smp.slices", "rank 5 of 8"}};
                  EXPECT_THAT(refused(swapped), HasSubstr("was given the slices of rank 5 of 8"));
                  auto of_another_model = copied(part);  // whose tensors are as large as slices
                  of_another_model.metadata.clear();
                  EXPECT_THAT(refused(of_another_model), HasSubstr("shape of"));
                  const auto kept = first.state_dict(kAllPpRanks);
                  for (const auto& [name, tensor] : whole) {
                    EXPECT_TRUE(torch::equal(kept.at(name), tensor)) << name;
                  }
                },
                config, {.seed = 1});
    }
  }
}

/// Its constructor asks for what only values tell, of another view of a buffer's memory.
struct SelectedImpl : torch::nn::Module {
  SelectedImpl()
      : a(register_module("a", nn::Linear(3, 3))),
        scale(register_buffer("scale", torch::rand({2, 3}))) {
    const auto flat = scale.flatten();
    positive = flat.masked_select(flat > 0.5).size(0);
  }
  Tensor forward(const Tensor& x) { return a(x) * scale; }
  nn::Linear a;
  Tensor scale;
  std::int64_t positive;
};
SMP_MODULE(Selected);

TEST(LoadsBetween, IntoABufferOfWhichAViewHasValues) {
  for (const int stages : {1, 2}) {
    run_local(stages,
              [&] {
                std::optional<delay_param_initialization> delay(std::in_place);
                torch::manual_seed(3);
                Selected net;
                delay.reset();
                DistributedModel model(net);
                if (stages == 2) model.set_partition("a", 1);
                auto dict = StateDict{{"scale", torch::full({2, 3}, 5.)}};
                model.load_state_dict(dict, /*strict=*/false);
                dict.at("scale").zero_();
                model.place();
                const auto all = model.state_dict(kAllPpRanks);
                EXPECT_TRUE(torch::equal(all.at("scale"), torch::full({2, 3}, 5.)));
                torch::manual_seed(3);
                const Selected plain;
                EXPECT_TRUE(torch::equal(all.at("a.weight"), plain->a->weight));
                EXPECT_EQ(net->positive, plain->positive);
              },
              config_of(stages), {.seed = 1});
  }
}

struct NormedImpl : torch::nn::Module {
  NormedImpl()
      : a(register_module("a", nn::Linear(3, 3))),
        norm(register_module("norm", nn::BatchNorm1d(3))) {}
  Tensor forward(const Tensor& x) { return norm(a(x)); }
  nn::Linear a;
  nn::BatchNorm1d norm;
};
SMP_MODULE(Normed);

/// Running statistics are each replica's own, also in its dicts.
TEST(LoadsBetween, ReplicasTakeBackTheirOwnBuffers) {
  run_local(2,
            [] {
              torch::manual_seed(3);
              Normed net;
              DistributedModel model(net);
              auto step = smp::step([&](Tensor x) { model.backward(model(x).square().sum()); });
              step(torch::randn({4, 3}) + dp_rank());
              const auto best = model.state_dict(kAllPpRanks);
              step(torch::randn({4, 3}) - dp_rank());
              model.load_state_dict(best);
              EXPECT_TRUE(torch::equal(net->norm->running_mean, best.at("norm.running_mean")));
            },
            config_of(1), {.seed = 1});
}

// ---- one process -------------------------------------------------------------------------------

struct WindowImpl : torch::nn::Module {
  WindowImpl() {
    w = register_parameter("w", torch::zeros({4}));
    v = register_buffer("v", w.detach().slice(0, 0, 2));
  }
  Tensor forward(const Tensor& x) { return x * w; }
  Tensor w, v;
};
SMP_MODULE(Window);

/// The buffer comes after the parameter, in the model and in PyTorch's load, whatever comes first
/// in the dict.
TEST(LoadsBetween, SharedMemoryTakesValuesInTheModelsOrder) {
  const StateDict dict{{"v", torch::full({2}, 5.f)}, {"w", torch::ones({4})}};
  for (const bool delayed : {false, true}) {
    run_local(1,
              [&] {
                std::optional<delay_param_initialization> delay;
                if (delayed) delay.emplace();
                Window net;
                delay.reset();
                DistributedModel model(net);
                model.load_state_dict(dict);
                model.place();
                EXPECT_TRUE(torch::equal(net->w, torch::tensor({5.f, 5.f, 1.f, 1.f}))) << net->w;
              },
              config_of(1), {.seed = 1});
  }
}

TEST(LoadsBetween, ALoadMayStandUnderAutocast) {
  run_local(1,
            [&] {
              auto net = make_pair(true);
              DistributedModel model(net);
              const bool before = at::autocast::is_autocast_enabled(at::kCPU);
              at::autocast::set_autocast_enabled(at::kCPU, true);
              model.load_state_dict(filled(3));
              at::autocast::set_autocast_enabled(at::kCPU, before);
              model.place();
              EXPECT_EQ(net->b->bias[1].item<float>(), 3);
            },
            config_of(1), {.seed = 1});
}

/// A file that was changed makes each placement fail, and none fill in zeros.
TEST(LoadsBetween, APlacementThatFailsIsNotRightTheSecondTime) {
  for (const int ranks : {1, 2}) {
    const auto path = testing::TempDir() + "between." + std::to_string(getpid()) + ".safetensors";
    save_safetensors(filled(3), path);
    run_local(ranks,
              [&] {
                auto net = make_pair(true);
                DistributedModel model(net);
                load_safetensors(model, path);
                barrier();
                if (rank() == 0) {
                  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
                  file.seekp(-4, std::ios::end);
                  file.write("abcd", 4);
                }
                barrier();
                for (int time = 0; time < 2; ++time) {
                  EXPECT_THAT(refusal<UsageError>([&] { model.place(); }),
                              HasSubstr("checksum does not fit"));
                }
              },
              config_of(ranks), {.seed = 1});
    unlink(path.c_str());
  }
}

/// What is put off and what a thread of the program draws do not meet.
TEST(LoadsBetween, OtherThreadsKeepTheGenerator) {
  const auto draw = [](const std::atomic<bool>& stop) {
    std::vector<float> drawn;
    while (drawn.size() < 64 || !stop) drawn.push_back(torch::rand({1}).item<float>());
    return drawn;
  };
  run_local(1,
            [&] {
              std::optional<delay_param_initialization> delay;
              torch::manual_seed(1);
              delay.emplace();
              nn::Sequential net;
              for (int i = 0; i < 40; ++i) net->push_back(nn::Linear(100, 100));
              delay.reset();
              DistributedModel model(net);
              torch::manual_seed(9);
              std::atomic<bool> stop = false, runs = false;
              std::vector<float> drawn;
              std::thread loader([&] {
                runs = true;
                drawn = draw(stop);
              });
              while (!runs) std::this_thread::yield();
              model.place();
              stop = true;
              loader.join();
              torch::manual_seed(9);
              for (const float number : drawn) ASSERT_EQ(number, torch::rand({1}).item<float>());
              torch::manual_seed(1);
              nn::Sequential plain;
              for (int i = 0; i < 40; ++i) plain->push_back(nn::Linear(100, 100));
              for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
                EXPECT_TRUE(torch::equal(net->parameters()[i], plain->parameters()[i])) << i;
              }
            },
            config_of(1), {.seed = 1});
}

/// Orthogonal matrices after the scope ask a tensor without values for its shape.
TEST(LoadsBetween, OrthogonalAfterTheScope) {
  run_local(1,
            [&] {
              auto net = make_pair(true);
              auto plain = make_pair(false);
              for (auto& each : {net, plain}) {
                torch::manual_seed(6);
                torch::nn::init::orthogonal_(each->a->weight);
              }
              DistributedModel model(net);
              model.place();
              EXPECT_TRUE(torch::equal(net->a->weight, plain->a->weight));
            },
            config_of(1), {.seed = 1});
}

/// A parameter that takes the place of another in a group is stepped as one of no model.
TEST(LoadsBetween, AnExchangedParameterIsSharedOut) {
  run_local(2,
            [] {
              auto net = make_pair(false);
              DistributedModel model(net);
              const auto first = torch::ones({1}).requires_grad_();
              auto second = torch::ones({1}).requires_grad_();
              auto parameters = net->parameters();
              parameters.push_back(first);
              DistributedOptimizer optimizer(model, torch::optim::SGD(parameters, 0.1));
              model.place();
              auto& group = optimizer.param_groups()[0].params();
              for (auto& parameter : group) {
                if (parameter.is_same(first)) parameter = second;
              }
              auto step = smp::step([&](Tensor x) { model.backward((model(x) * second).sum()); });
              step(torch::ones({2, 3}));
              optimizer.step();
              const auto values = all_gather(second.item<float>());
              EXPECT_NE(values[0], 1);
              EXPECT_EQ(values[0], values[1]);
            },
            config_of(2), {.seed = 1});
}

}  // namespace loads_between_test
}  // namespace smp
