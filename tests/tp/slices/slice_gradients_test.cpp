// Gradients of slices that are in `.grad` before a step: means, or the user's, count like those of
// whole parameters (docs/data_parallelism.md, What is added up).
#include <gmock/gmock.h>

#include "smp/clip_grad.h"
#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace slice_gradients_test {

struct Kind {
  int ranks, tp;
  int pp = 1;
  bool prescaled = false;
  bool sparse = false;
  bool shard = false;  ///< of optimizer state
  bool overlap = true;

  int batches() const { return ranks / pp / (prescaled ? tp : 1); }
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.ranks << " ranks, tp " << kind.tp << ", pp " << kind.pp
       << (kind.prescaled ? ", prescaled" : "") << (kind.sparse ? ", sparse" : "")
       << (kind.shard ? ", sharded" : "") << (kind.overlap ? "" : ", averaged at the end");
}

Config config_of(const Kind& kind) {
  Config config;
  config.tensor_parallel_degree = kind.tp;
  config.pipeline_parallel_degree = kind.pp;
  config.microbatches = kMicrobatches;
  config.prescaled_batch = kind.prescaled;
  config.shard_optimizer_state = kind.shard;
  config.overlapping_allreduce = kind.overlap;
  return config;
}

using Gradients = std::map<std::string, at::Tensor>;

BagOfWordsImpl<PlainLayers> plain_net() {
  torch::manual_seed(3);
  return BagOfWordsImpl<PlainLayers>();
}

/// Of plain LibTorch: the mean over `batches` of each of `steps`, added up, and `user` times the
/// parameter.
Gradients reference(const std::set<int>& batches, const std::vector<int>& steps, double user = 0) {
  auto plain = plain_net();
  const double weight = 1.0 / (static_cast<double>(batches.size()) * kMicrobatches);
  for (const int step : steps) {
    for (const int batch : batches) {
      const auto [tokens, targets] = samples(step, batch);
      for (std::size_t m = 0; m < kMicrobatches; ++m) {
        (torch::mse_loss(plain.forward(tokens.chunk(kMicrobatches)[m]),
                         targets.chunk(kMicrobatches)[m]) *
         weight)
            .backward();
      }
    }
  }
  Gradients gradients;
  for (const auto& item : plain.named_parameters()) {
    gradients[item.key()] = item.value().grad() + user * item.value().detach();
  }
  return gradients;
}
Gradients reference(const Kind& kind, const std::vector<int>& steps, double user = 0) {
  std::set<int> batches;
  for (int batch = 0; batch < kind.batches(); ++batch) batches.insert(batch);
  return reference(batches, steps, user);
}

/// That the ranks read with which this one shares distributed modules.
std::set<int> batches_of_group() {
  std::set<int> batches;
  for (const int member : group(Group::kTp)) {
    batches.insert(broadcast(data_shard().index, member, Group::kTp));
  }
  return batches;
}

/// The net on this rank.
struct Trained {
  explicit Trained(const Kind& kind)
      : net(made(kind.sparse)), model(net), optimizer(model, sgd(model.parameters())) {
    model.set_partition("", 0);
    model.set_partition("first", kind.pp - 1);
    model.set_partition("whole", kind.pp - 1);
  }
  static SlicedBag made(bool sparse) {
    torch::manual_seed(3);
    return SlicedBag(sparse);
  }
  void train(int step, bool backward = true, bool fails = false) {
    auto body = smp::step([&](const at::Tensor& tokens, const at::Tensor& targets) {
      if (fails) throw std::out_of_range("the body fell over");
      const auto loss = torch::mse_loss(model(tokens), targets);
      if (backward) model.backward(loss);
    });
    const auto [tokens, targets] = samples(step, data_shard().index);
    body(tokens, targets);
  }
  SlicedBag net;
  DistributedModel<SlicedBag> model;
  DistributedOptimizer<torch::optim::SGD> optimizer;
};

/// @param sharded  a gradient is where it is stepped
void expect_gradients(const DistributedModelBase& model, const Gradients& expected,
                      bool sharded = false) {
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    if (sharded && !parameter.grad().defined()) continue;
    ASSERT_TRUE(parameter.grad().defined()) << name;
    const auto wanted = slice_of(expected.at(name), name, tp_rank(), tp_size());
    EXPECT_TRUE(torch::allclose(parameter.grad().to_dense(), wanted, 1e-11, 1e-13))
        << name << " on rank " << rank() << ":\n"
        << parameter.grad().to_dense() << "\ninstead of\n"
        << wanted;
  }
}

class SliceGradients : public testing::TestWithParam<Kind> {};

TEST_P(SliceGradients, AddUpOverStepsThatNobodyZeroes) {
  const auto kind = GetParam();
  auto plain = plain_net();
  for (const auto& [name, gradient] : reference(kind, {0, 1, 2})) {
    plain.named_parameters()[name].mutable_grad() = gradient;
  }
  const double norm = torch::nn::utils::clip_grad_norm_(plain.parameters(), 0.01);
  Gradients clipped;
  for (const auto& item : plain.named_parameters()) clipped[item.key()] = item.value().grad();
  run_local(kind.ranks,
            [&] {
              Trained trained(kind);
              for (const int step : {0, 1, 2}) trained.train(step);
              expect_gradients(trained.model, reference(kind, {0, 1, 2}), kind.shard);
              EXPECT_NEAR(trained.model.clip_grad_norm_(0.01), norm, 1e-12 * norm);
              expect_gradients(trained.model, clipped, kind.shard);
            },
            config_of(kind), {4});
}

TEST_P(SliceGradients, StayWhatTheyAreInStepsThatGiveNone) {
  const auto kind = GetParam();
  run_local(kind.ranks,
            [&] {
              Trained trained(kind), other(kind);
              trained.train(0);
              trained.train(1, /*backward=*/false);
              expect_gradients(trained.model, reference(kind, {0}), kind.shard);
              other.train(1);  // averages what models have, all of them
              other.train(2);
              expect_gradients(trained.model, reference(kind, {0}), kind.shard);
              expect_gradients(other.model, reference(kind, {1, 2}), kind.shard);
            },
            config_of(kind), {4});
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, SliceGradients,
    testing::Values(Kind{2, 2}, Kind{4, 2}, Kind{4, 2, 2}, Kind{4, 4}, Kind{4, 2, 1, true},
                    Kind{2, 2, 1, false, true}, Kind{4, 2, 1, false, false, true},
                    Kind{4, 2, 1, true, false, true}, Kind{8, 2, 2, false, false, true},
                    Kind{4, 2, 1, false, false, false, false}, Kind{4, 2, 1, false, true, true}));

TEST(SliceGradientsBeforeAStep, AreTheUsersLikeAnyOther) {
  for (const auto& kind : {Kind{2, 2}, Kind{4, 2}, Kind{4, 2, 1, true}}) {
    SCOPED_TRACE(testing::PrintToString(kind));
    run_local(kind.ranks,
              [&] {
                Trained trained(kind);
                const auto give = [&] {
                  for (auto& parameter : trained.model.local_parameters()) {
                    parameter.mutable_grad() = 0.25 * parameter.detach();
                  }
                };
                give();  // before the model is placed
                trained.train(0);
                expect_gradients(trained.model, reference(kind, {0}, 0.25));
                give();
                trained.train(1);
                expect_gradients(trained.model, reference(kind, {1}, 0.25));
              },
              config_of(kind), {4});
  }
}

TEST(SliceGradientsUnderNoSync, AreThoseOfTheGroupsBatches) {
  for (const auto& kind : {Kind{2, 2}, Kind{4, 2}, Kind{4, 2, 2}, Kind{4, 2, 1, true}}) {
    SCOPED_TRACE(testing::PrintToString(kind));
    run_local(kind.ranks,
              [&] {
                Trained trained(kind);
                {
                  const auto apart = trained.model.no_sync();
                  trained.train(0);
                  trained.train(1);
                }
                const auto of_group = reference(batches_of_group(), {0, 1});
                const auto parameters = trained.net->named_parameters();
                for (const auto& [name, dim] : kSliced) {
                  const auto& parameter = parameters[name];
                  if (!trained.model.owns(parameter)) continue;
                  EXPECT_TRUE(torch::allclose(
                      parameter.grad(), slice_of(of_group.at(name), name, tp_rank(), tp_size()),
                      1e-11, 1e-13))
                      << name << " on rank " << rank();
                }
                trained.train(2);
                expect_gradients(trained.model, reference(kind, {0, 1, 2}));
              },
              config_of(kind), {4});
  }
}

TEST(SliceGradientsOfAFailedStep, AreWhatTheyWereBefore) {
  const Kind kind{2, 2};
  run_local(kind.ranks,
            [&] {
              Trained trained(kind);
              trained.train(0);
              EXPECT_ANY_THROW(trained.train(1, /*backward=*/true, /*fails=*/true));
              expect_gradients(trained.model, reference(kind, {0}));
              trained.train(1);
              expect_gradients(trained.model, reference(kind, {0, 1}));
            },
            config_of(kind), {4});
}

}  // namespace slice_gradients_test
}  // namespace smp::tp
