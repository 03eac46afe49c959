// Schedules by configuration: lists of the user's, and a backward in two parts.
#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/chain_model.h"
#include "base/files.h"

namespace smp {
namespace schedules_test {

using testing::HasSubstr;

Config config_with(const std::string& pipeline) {
  Config config;
  config.microbatches = 3;
  config.plan_cache = "off";
  config.pipeline = pipeline;
  return config;
}

/// Gradients of a step on 3 ranks.
std::map<std::string, at::Tensor> gradients_with(const std::string& pipeline) {
  std::map<std::string, at::Tensor> gradients;
  run_local(3,
            [&] {
              DistributedModel<Chain> model(make_chain());
              model.set_partition("", 0);
              model.set_partition("b", 1);
              model.set_partition("c", 2);
              auto train =
                  smp::step([&](at::Tensor x) { model.backward(model(x).square().mean()); });
              train(rows(6));
              for (auto& [name, parameter] : model.local_named_parameters()) {
                gradients[name] = parameter.grad();
              }
            },
            config_with(pipeline), {.seed = 5});
  return gradients;
}

class ScheduleFile : public testing::Test {
 protected:
  std::string with(const std::string& ranks) const {
    base::write_file(path_, "smp-schedule 1\nmicrobatches 3\n" + ranks);
    return "file:" + path_;
  }
  void TearDown() override { std::filesystem::remove(path_); }
  const std::string path_ = testing::TempDir() + "/schedules_test.txt";
};

TEST_F(ScheduleFile, GivesTheSameBitsAsEveryOtherSchedule) {
  const auto expected = gradients_with("simple");
  ASSERT_EQ(expected.size(), 6u);
  for (const auto& pipeline :
       {std::string("1f1b"), with("rank 0: F0 F1 F2 B0 B1 B2\nrank 1: F0 B0 F1 B1 F2 B2\n"
                                  "rank 2: F0 B0 F1 B1 F2 B2\n")}) {
    const auto gradients = gradients_with(pipeline);
    for (const auto& [name, gradient] : expected) {
      EXPECT_TRUE(at::equal(gradients.at(name), gradient)) << pipeline << ", " << name;
    }
  }
}

TEST_F(ScheduleFile, ThatIsWrongEndsTheStart) {
  const auto start = [](const std::string& pipeline) {
    run_local(
        3, [] {}, config_with(pipeline));
  };
  EXPECT_THAT(refusal<UsageError>([&] { start(with("rank 0: F0 F1 F2 B0 B1 B2\n")); }),
              HasSubstr("a schedule for 1 ranks, and the pipeline has 3"));
  EXPECT_THAT(refusal<UsageError>([&] {
                start(
                    with("rank 0: F0 F1 F2 B0 B1 B2\nrank 1: F0 F1 F2 B0 B1 B2\n"
                         "rank 2: B0 F0 F1 F2 B1 B2\n"));
              }),
              HasSubstr("rank 2, position 1, B0: F0 must come first"));
}

/// On every rank, before anybody begins.
TEST_F(ScheduleFile, WithFewerMicrobatchesThanAStepIsRefused) {
  const auto refused = refusal<UsageError>([&] {
    run_local(
        3,
        [] {
          DistributedModel<Chain> model(make_chain());
          auto train = smp::step([&](at::Tensor x) { model.backward(model(x).square().mean()); },
                                 {.microbatches = 6});
          train(rows(6));
        },
        config_with("1f1b"));
  });
  EXPECT_THAT(refused, HasSubstr("a step of 6 microbatches, and pipeline = 1f1b lists 3"));
  EXPECT_THAT(refused, HasSubstr("set microbatches to the largest number"));
}

// ---- a backward in two parts --------------------------------------------------------------------

TEST_F(ScheduleFile, WeightGradientsMayComeLast) {
  const auto expected = gradients_with("simple");
  for (const auto& pipeline :
       {std::string("zero_bubble"),
        with("rank 0: F0 F1 F2 B0 B1 B2\nrank 1: F0 F1 F2 I0 I1 I2 W2 W1 W0\n"
             "rank 2: F0 F1 F2 I0 I1 I2 W0 W1 W2\n")}) {
    const auto gradients = gradients_with(pipeline);
    for (const auto& [name, gradient] : expected) {
      EXPECT_TRUE(at::equal(gradients.at(name), gradient)) << pipeline << ", " << name;
    }
  }
}

/// A product with a weight; `note` gets "I0" when the gradient of its argument is there for
/// microbatch 0, and "W0" when that of its weight is.
struct WatchedImpl : torch::nn::Module {
  explicit WatchedImpl(std::function<void(const std::string&)> with) : note(std::move(with)) {
    weight = register_parameter("weight", torch::eye(3));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto watch = [this](const at::Tensor& tensor, const std::string& what) {
      if (!tensor.requires_grad() || current_microbatch() < 0) return;
      const auto text = what + std::to_string(current_microbatch());
      tensor.register_hook([note = note, text](const at::Tensor&) { note(text); });
    };
    const auto scaled = weight * 2;
    watch(x, "I");
    watch(scaled, "W");
    return x.mm(scaled);
  }
  std::function<void(const std::string&)> note;
  at::Tensor weight;
};
SMP_MODULE(Watched);

struct TwoImpl : torch::nn::Module {
  explicit TwoImpl(std::function<void(const std::string&)> note)
      : first(register_module("first", Watched([](const std::string&) {}))),
        second(register_module("second", Watched(std::move(note)))) {}
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  Watched first, second;
};
SMP_MODULE(Two);

/// `note` of the module on the last of 2 ranks, in a step of 3 microbatches. Messages take other
/// times for every seed, computations none: schedules_mpi_test.cpp is about those.
void train_two(const std::string& pipeline, const std::function<void(const std::string&)>& note,
               std::uint64_t seed) {
  run_local(2,
            [&] {
              DistributedModel<Two> model(Two(rank() == 1 ? note : [](const std::string&) {}));
              model.set_partition("", 0);
              model.set_partition("second", 1);
              auto train =
                  smp::step([&](at::Tensor x) { model.backward(model(x).square().mean()); });
              train(torch::ones({6, 3}));
            },
            config_with(pipeline), {.seed = seed});
}

std::string order_with(const std::string& pipeline, std::uint64_t seed) {
  std::string order;
  train_two(
      pipeline, [&](const std::string& what) { order += what + " "; }, seed);
  return order;
}

constexpr std::uint64_t kSeeds = 30;

TEST_F(ScheduleFile, WeightGradientsComeAtOnceWhereItSaysSo) {
  const auto pipeline = with("rank 0: F0 F1 F2 B0 B1 B2\nrank 1: F0 F1 F2 I0 W0 I1 W1 I2 W2\n");
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto order = order_with(pipeline, seed);
    for (const char* pair : {"I0 W0 ", "I1 W1 ", "I2 W2 "}) EXPECT_THAT(order, HasSubstr(pair));
  }
}

TEST_F(ScheduleFile, AFailureInTheSecondPartEndsTheStep) {
  const auto text = refusal<RemoteError>([&] {
    train_two(
        with("rank 0: F0 F1 F2 B0 B1 B2\nrank 1: F0 F1 F2 I0 I1 I2 W0 W1 W2\n"),
        [](const std::string& what) {
          if (what == "W1") throw std::runtime_error("a hook of the weight");
        },
        5);
  });
  EXPECT_THAT(text, HasSubstr("a hook of the weight"));
  EXPECT_THAT(text, HasSubstr("module second (backward), microbatch 1"));
}

}  // namespace schedules_test
}  // namespace smp
