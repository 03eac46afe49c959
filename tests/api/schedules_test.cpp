// Schedules by configuration: lists of the user's, and what cannot be run yet.
#include <torch/types.h>

#include <filesystem>

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

TEST(Schedules, ABackwardInTwoPartsIsKnownButNotRunYet) {
  EXPECT_THAT(refusal<UnsupportedError>([] {
                run_local(
                    3, [] {}, config_with("zero_bubble"));
              }),
              HasSubstr("known, simulated, but not run yet"));
}

}  // namespace schedules_test
}  // namespace smp
