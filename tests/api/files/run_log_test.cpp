// What a run leaves in its folder, with two ranks in one process.
#include "smp/run_log.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>

#include "api/files/runs_folder.h"
#include "base/check.h"
#include "base/files.h"
#include "config/json.h"
#include "report/analysis/idle_time.h"
#include "report/analysis/step_arrows.h"
#include "report/analysis/trace_file.h"
#include "report/folder/run_folder.h"
#include "report/pictures/traffic.h"
#include "report/svg_reader.h"
// Not smp/smp.h: its function smp::report and the namespace smp::report exclude each other.
#include "smp/checkpoint.h"
#include "smp/clip_grad.h"
#include "smp/codec.h"
#include "smp/config.h"
#include "smp/delayed_init.h"
#include "smp/distributed_model.h"
#include "smp/distributed_optimizer.h"
#include "smp/error.h"
#include "smp/grad.h"
#include "smp/module.h"
#include "smp/nn.h"
#include "smp/placement.h"
#include "smp/plan.h"
#include "smp/precision/grad_scaler.h"
#include "smp/session.h"
#include "smp/state_dict.h"
#include "smp/step.h"
#include "smp/step_output.h"
#include "smp/topology.h"
#include "support/refusal.h"

namespace smp {
namespace run_log_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

constexpr std::chrono::milliseconds kNap(20);

struct SlowSgd : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    std::this_thread::sleep_for(kNap);
    return SGD::step(std::move(closure));
  }
};

class RunLogOfTwoRanks : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(parent_); }

  // Trains two layers on two stages for `steps` steps; `after` runs on both ranks with the log.
  void train(int steps, const std::function<void(RunLog&)>& after) {
    Config config;
    config.microbatches = 2;
    run_local(
        2,
        [&] {
          nn::Sequential net(nn::Linear(4, 4), nn::Linear(4, 1));
          DistributedModel model(net);
          RunLog log("tiny", model,
                     {.parent_folder = parent_,
                      .loss_unit = "squares",
                      .lines_before = lines_before_,
                      .continues = continues_});
          DistributedOptimizer optimizer(model, SlowSgd(model.parameters(), 0.1));
          folders_[rank()] = log.folder();
          auto step = smp::step([&](at::Tensor x) {
            auto loss = model(x).square().mean();
            model.backward(loss);
            return loss;
          });
          for (int i = 0; i < steps; ++i) {
            const double loss = step(torch::ones({4, 4})).reduce_mean().item().toDouble();
            timings_[rank()] = log.measure();
            log.append({{"loss", loss}, {"rows", 4}});
            if (i == steps - 1) break;
            if (sleeps_) optimizer.step();
            if (sleeps_) std::this_thread::sleep_for(2 * kNap);
          }
          if (evaluates_) {
            const torch::NoGradGuard no_grad;
            smp::step([&](at::Tensor x) { return model(x).sum(); })(torch::ones({4, 4}));
          }
          after(log);
        },
        config);
  }

  std::string read(const std::string& name) { return base::read_file(folders_[0] + "/" + name); }

  std::int64_t lines_before_ = 0;
  std::string continues_;
  bool sleeps_ = false;     // between steps, in the optimizer and outside of it
  bool evaluates_ = false;  // after the last step
  const std::string parent_ = base::concat(testing::TempDir(), "smp_run_log_", ::getpid());
  std::map<int, std::string> folders_;
  std::map<int, StepTiming> timings_;
};

TEST_F(RunLogOfTwoRanks, HoldsNumbersPlanConfigurationAndPictures) {
  std::map<int, std::vector<std::string>> pictures;
  train(3, [&](RunLog& log) { pictures[rank()] = log.finish(); });
  EXPECT_EQ(folders_[0], folders_[1]);
  EXPECT_THAT(folders_[0], StartsWith(parent_ + "/tiny-2"));
  EXPECT_THAT(pictures[0],
              ElementsAre(folders_[0] + "/loss.svg", folders_[0] + "/metrics.csv",
                          folders_[0] + "/timeline.svg", folders_[0] + "/timeline.html",
                          folders_[0] + "/traffic.svg", folders_[0] + "/partition.svg",
                          folders_[0] + "/memory.svg", folders_[0] + "/timeline-simulated.svg",
                          folders_[0] + "/memory-step.svg", folders_[0] + "/report.html"));
  EXPECT_THAT(pictures[1], SizeIs(0));
  EXPECT_THAT(read("metrics.jsonl"),
              AllOf(StartsWith("{\"step\":1,\"loss\":"), HasSubstr("{\"step\":3,\"loss\":"),
                    HasSubstr("\"rows\":4,\"step_seconds\":"), HasSubstr("\"bubble\":")));
  EXPECT_EQ(PartitionPlan::read(folders_[0] + "/plan.json").pp_size(), 2);
  EXPECT_THAT(read("arguments.json"), HasSubstr("\"how\": \"along axis 0\""));
  EXPECT_THAT(read("report.html"), AllOf(HasSubstr("Arguments of steps"), HasSubstr("Float [4, 4]"),
                                         HasSubstr("axis 1 is as long")));
  const auto run = base::parse_json(read("run.json"), "run.json");
  EXPECT_EQ(run["configuration"]["microbatches"]["value"], 2);
  EXPECT_EQ(run["configuration"]["microbatches"]["origin"], "Config in code");
  ASSERT_EQ(run["computing"].size(), 1u) << "both ranks are of this process";
  EXPECT_EQ(run["computing"][0]["ranks"], "ranks 0-1");
  EXPECT_EQ(run["computing"][0]["threads"], at::get_num_threads());
  EXPECT_THAT(run["computing"][0]["processor"].get<std::string>(),
              HasSubstr(at::get_cpu_capability()));
}

TEST_F(RunLogOfTwoRanks, LetsTheRunGoOnWithoutAFolder) {
  testing::internal::CaptureStderr();
  std::map<int, int> steps;
  train(3, [&](RunLog& log) {
    if (rank() == 0) std::filesystem::remove_all(log.folder());
    EXPECT_THAT(log.finish(), SizeIs(0));
    ++steps[rank()];
  });
  const auto words = testing::internal::GetCapturedStderr();
  EXPECT_EQ(steps.size(), 2u) << "both ranks came to their end";
  EXPECT_THAT(words, AllOf(HasSubstr("the run goes on, its log in " + folders_[0]),
                           HasSubstr("No such file or directory")));
  EXPECT_EQ(words.find("the run goes on"), words.rfind("the run goes on")) << "said once";
}

/// Files of this process can have so many bytes.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_ = {};
};

TEST_F(RunLogOfTwoRanks, LetsTheRunGoOnWithAFullDisk) {
  testing::internal::CaptureStderr();  // into a file: shorter than that of the metrics
  train(20, [&](RunLog& log) {
    if (rank() == 0) {
      const FileSizeLimit full(std::filesystem::file_size(log.folder() + "/metrics.jsonl") + 10);
      for (int i = 0; i < 3; ++i) log.append({{"loss", 1}});
    }
    log.append({{"loss", 2}});
    log.finish();
  });
  const auto words = testing::internal::GetCapturedStderr();
  EXPECT_THAT(words, HasSubstr("is incomplete from step 21 on: cannot append to " + folders_[0] +
                               "/metrics.jsonl: File too large"));
  EXPECT_EQ(words.find("the run goes on"), words.rfind("the run goes on")) << "said once";
  EXPECT_THAT(report::losses_of(read("metrics.jsonl"), "metrics.jsonl"), SizeIs(20));
}

TEST_F(RunLogOfTwoRanks, DrawsTheMeasuredStepOfBothRanks) {
  train(2, [](RunLog& log) { log.finish(); });
  const auto trace = report::trace_from_json(read("trace.json"), "trace.json");
  ASSERT_EQ(trace.ranks.size(), 2u);
  for (const auto& rank : trace.ranks) {
    EXPECT_FALSE(rank.spans.empty());
    for (std::size_t i = 1; i < rank.spans.size(); ++i) {
      EXPECT_LE(rank.spans[i - 1].end, rank.spans[i].start);
    }
  }
  const auto arrows = report::arrows_of(trace);
  EXPECT_FALSE(arrows.empty());
  for (const auto& arrow : arrows) {
    EXPECT_NE(arrow.from, arrow.to);
    EXPECT_LE(arrow.start, arrow.end);
  }
  const std::string svg = read("timeline.svg");
  EXPECT_EQ(report::elements(svg, "rect", "lane").size(), 2u);
  EXPECT_FALSE(report::elements(svg, "rect", "forward").empty());
  EXPECT_FALSE(report::elements(svg, "rect", "backward").empty());
}

TEST_F(RunLogOfTwoRanks, TellsTheTimeBetweenStepsFromThatOfTheStep) {
  sleeps_ = true;
  train(3, [](RunLog& log) { log.finish(); });
  const auto trace = report::trace_from_json(read("trace.json"), "trace.json");
  const auto idle = report::idle_time(trace, report::arrows_of(trace));
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& between = trace.ranks.at(i).between;
    ASSERT_FALSE(between.empty());
    for (std::size_t j = 1; j < between.size(); ++j) {
      EXPECT_GE(between[j].start, between[j - 1].end);
      EXPECT_LT(between[j].start - between[j - 1].end, 15 * base::kMillisecond)
          << "no sleep is left out";
    }
    EXPECT_EQ(between.back().end, trace.ranks[i].start);
    EXPECT_GE(idle.ranks[i].optimizer, 20 * base::kMillisecond);
    EXPECT_GE(idle.ranks[i].host, 40 * base::kMillisecond);
    EXPECT_GT(idle.ranks[i].library, 0);
  }
  EXPECT_FALSE(report::elements(read("timeline.svg"), "rect", "optimizer").empty());
}

TEST_F(RunLogOfTwoRanks, DrawsTheLastStepWithGradientsThoughAnEvaluationFollows) {
  evaluates_ = true;
  train(3, [](RunLog& log) { log.finish(); });
  const auto trace = report::trace_from_json(read("trace.json"), "trace.json");
  ASSERT_EQ(trace.ranks.size(), 2U);
  for (const auto& rank : trace.ranks) {
    EXPECT_TRUE(std::any_of(rank.spans.begin(), rank.spans.end(), [](const auto& span) {
      return span.phase == schedule::Phase::kBackward;
    }));
  }
}

TEST_F(RunLogOfTwoRanks, CountsWhatTravelsBetweenRanks) {
  train(3, [](RunLog& log) { log.finish(); });
  const auto traffic = report::traffic_from_json(read("traffic.json"), "traffic.json");
  EXPECT_EQ(traffic.steps, 3);
  ASSERT_EQ(traffic.size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(traffic.bytes[rank][rank], 0);
    EXPECT_EQ(traffic.messages[rank][rank], 0);
  }
  // The second layer is on rank 1: 4 rows of 4 floats there and their gradients back, 4 of one
  // float back and their gradients there; and the two losses.
  EXPECT_EQ(PartitionPlan::read(folders_[0] + "/plan.json").stage_of("0"), 0);
  EXPECT_EQ(traffic.bytes[0][1], 3 * (64 + 16 + 8));
  EXPECT_EQ(traffic.bytes[1][0], 3 * (64 + 16));
  // Each of two microbatches asks forward and backward.
  EXPECT_GE(traffic.messages[0][1], 3 * 4);
  EXPECT_GE(traffic.messages[1][0], 3 * 4);
  EXPECT_EQ(traffic.paths, (std::vector<std::vector<std::string>>{{"", "local"}, {"local", ""}}));
}

TEST_F(RunLogOfTwoRanks, TellsEveryRankTheSameTiming) {
  train(1, [](RunLog& log) { log.finish(); });
  EXPECT_GT(timings_[0].seconds, 0);
  EXPECT_GT(timings_[0].bubble, 0);
  EXPECT_LT(timings_[0].bubble, 1);
  EXPECT_EQ(timings_[0].seconds, timings_[1].seconds);
  EXPECT_EQ(timings_[0].bubble, timings_[1].bubble);
}

TEST_F(RunLogOfTwoRanks, StillDrawsTheLossAndTheLastStepIfTheRunEndsEarly) {
  EXPECT_THROW(train(2, [](RunLog&) { throw std::runtime_error("enough"); }), std::runtime_error);
  EXPECT_TRUE(base::file_exists(folders_[0] + "/loss.svg"));
  EXPECT_THAT(read("timeline.svg"), HasSubstr("Step 2, in which the run ended"));
  const auto trace = report::trace_from_json(read("trace.json"), "trace.json");
  EXPECT_TRUE(trace.unfinished);
  ASSERT_EQ(trace.ranks.size(), 2u);
  EXPECT_THAT(trace.module_paths, testing::Contains("0"));
  for (const auto& rank : trace.ranks) {
    EXPECT_EQ(rank.step, 2);
    EXPECT_FALSE(rank.spans.empty());
    EXPECT_FALSE(rank.requests.empty());
  }
}

TEST_F(RunLogOfTwoRanks, LeavesNothingForACrashBehindIfItEndsWell) {
  bool there = true;
  train(2, [&](RunLog& log) {
    there &= base::file_exists(log.folder() + "/" + report::ring_file(rank()));
    log.finish();
  });
  EXPECT_TRUE(there);
  for (const int rank : {0, 1}) {
    EXPECT_FALSE(base::file_exists(folders_[0] + "/" + report::ring_file(rank)));
  }
  EXPECT_FALSE(report::trace_from_json(read("trace.json"), "trace.json").unfinished);
}

TEST_F(RunLogOfTwoRanks, TellsReplicasItsFolderAndCountsOn) {
  Config config;
  config.pipeline_parallel_degree = 1;
  run_local(
      2,
      [&] {
        nn::Sequential net(nn::Linear(4, 1));
        DistributedModel model(net);
        RunLog log("two", model, {.parent_folder = parent_, .lines_before = 40});
        folders_[rank()] = log.folder();
        smp::step([&](at::Tensor x) { model.backward(model(x).mean()); })(torch::ones({4, 4}));
        log.measure();
        log.append({{"loss", 1}});
        const auto ring = folders_[0] + "/rank-0.ring";
        if (rank() == 1) log.finish();
        barrier();
        if (rank() == 0) {
          EXPECT_TRUE(std::filesystem::exists(ring)) << "nobody else's";
        }
        if (rank() == 0) log.finish();
        barrier();
        EXPECT_FALSE(std::filesystem::exists(ring));
      },
      config);
  EXPECT_THAT(folders_[0], StartsWith(parent_ + "/two-2"));
  EXPECT_EQ(folders_[1], folders_[0]);
  EXPECT_THAT(read("metrics.jsonl"), StartsWith("{\"step\":41,\"loss\":1"));
}

/// Returns the steps, below 128, of the records of a file for TensorBoard, in order: of an Event
/// with a time (8 bytes behind 0x09) the number behind 0x10. The first record has none.
std::vector<std::int64_t> steps_in(const std::string& file) {
  constexpr std::size_t kHead = 12, kTail = 4, kTime = 9;
  std::vector<std::int64_t> steps;
  for (std::size_t at = 0; at < file.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, file.data() + at, sizeof length);
    const auto event = file.substr(at + kHead, length);
    if (event.at(kTime) == 0x10) steps.push_back(event.at(kTime + 1));
    at += kHead + length + kTail;
  }
  return steps;
}

std::vector<std::int64_t> lines_in(const std::string& metrics) {
  std::vector<std::int64_t> steps;
  for (const auto& point : report::losses_of(metrics, "metrics.jsonl")) {
    steps.push_back(static_cast<std::int64_t>(point.x));
  }
  return steps;
}

TEST_F(RunLogOfTwoRanks, WritesNoStepTwiceWhereAJobGoesOn) {
  train(5, [](RunLog&) {});  // was not finished, say killed
  const auto before = folders_[0];
  const auto started = base::parse_json(read("run.json"), "run.json")["started"];
  lines_before_ = 3;
  continues_ = before;
  train(4, [](RunLog& log) { log.finish(); });
  EXPECT_EQ(folders_[0], before);
  EXPECT_EQ(folders_[1], before);
  EXPECT_THAT(lines_in(read("metrics.jsonl")), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(steps_in(read("events.out.tfevents.smp")), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(base::parse_json(read("run.json"), "run.json")["started"], started);
  EXPECT_EQ(report::trace_from_json(read("trace.json"), "trace.json").ranks[0].step, 4);

  lines_before_ = 7;  // a job that finds nothing left to do
  const auto files = {"metrics.jsonl", "events.out.tfevents.smp", "trace.json", "memory.json"};
  std::map<std::string, std::string> contents;
  for (const auto* const file : files) contents[file] = read(file);
  train(0, [](RunLog& log) { log.finish(); });
  for (const auto* const file : files) EXPECT_EQ(read(file), contents[file]) << file;
}

/// The gradient of the second step is infinite on one rank.
TEST_F(RunLogOfTwoRanks, TellsTheScaleOfLossesAndSkippedSteps) {
  const auto append = [&](RunLog& log, const char* name) { log.append({{name, 1}}); };
  run_local(2, [&] {
    nn::Sequential net(nn::Linear(4, 4), nn::Linear(4, 1));
    DistributedModel model(net);
    RunLog log("scaled", model, {.parent_folder = parent_});
    folders_[rank()] = log.folder();
    DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.1));
    append(log, "loss");  // nobody has scaled anything
    GradScaler scaler({.init_scale = 64, .growth_interval = 2});
    auto train =
        smp::step([&](at::Tensor x) { model.backward(scaler.scale(model(x).square().mean())); });
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      train(torch::ones({4, 4}));
      auto last = model.local_parameters().back();
      if (step == 1 && rank() == size() - 1) last.mutable_grad().fill_(INFINITY);
      scaler.step(optimizer);
      scaler.update();
      append(log, step == 3 ? "loss_scale" : "loss");
    }
  });
  EXPECT_EQ(read("metrics.jsonl"),
            "{\"step\":1,\"loss\":1}\n"
            "{\"step\":2,\"loss\":1,\"loss_scale\":64,\"skipped_steps\":0}\n"
            "{\"step\":3,\"loss\":1,\"loss_scale\":32,\"skipped_steps\":1}\n"
            "{\"step\":4,\"loss\":1,\"loss_scale\":32,\"skipped_steps\":1}\n"
            "{\"step\":5,\"loss_scale\":1,\"skipped_steps\":1}\n");
}

TEST_F(RunLogOfTwoRanks, RefusesToGoOnWhereNoRunIsOnEveryRank) {
  run_local(2, [&] {
    DistributedModel model(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 1)));
    EXPECT_THAT(refusal<UsageError>([&] { RunLog("tiny", model, {.continues = "nowhere"}); }),
                HasSubstr("RunLogOptions::continues is nowhere, which is no run's folder"));
  });
}

/// As `smp sweep` asks for it; it never goes on in a folder of before.
TEST_F(RunLogOfTwoRanks, MakesItsFolderWhereTheEnvironmentSays) {
  const auto elsewhere = parent_ + "/sweep/001";
  train(1, [](RunLog& log) { log.finish(); });
  continues_ = folders_[0];
  const auto lines = read("metrics.jsonl");
  ::setenv(kRunsFolderVariable, elsewhere.c_str(), 1);
  train(1, [](RunLog& log) { log.finish(); });
  ::unsetenv(kRunsFolderVariable);
  EXPECT_THAT(folders_[0], StartsWith(elsewhere + "/tiny-2"));
  EXPECT_EQ(base::read_file(continues_ + "/metrics.jsonl"), lines);
}

TEST_F(RunLogOfTwoRanks, RefusesANegativeNumberOfLines) {
  run_local(1, [&] {
    DistributedModel model(nn::Sequential(nn::Linear(4, 1)));
    EXPECT_THROW(RunLog("two", model, {.parent_folder = parent_, .lines_before = -1}), UsageError);
  });
}

/// And the ranks go on together, whoever was to make it.
TEST_F(RunLogOfTwoRanks, WithoutAPlaceIsRefusedOnEveryRank) {
  run_local(2, [&] {
    DistributedModel model(nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 1)));
    base::write_file(parent_ + ".file", "");
    EXPECT_THAT(refusal<ResourceError>(
                    [&] { RunLog("tiny", model, {.parent_folder = parent_ + ".file"}); }),
                HasSubstr(parent_ + ".file"));
    auto step = smp::step([&](at::Tensor x) { return model(x).sum(); });
    step(torch::ones({4, 4}));
  });
  base::remove_file(parent_ + ".file");
}

TEST_F(RunLogOfTwoRanks, IsOverOnceItWasFinished) {
  train(1, [](RunLog& log) {
    log.finish();
    EXPECT_THAT(refusal<UsageError>([&] {
                  log.append({{"loss", 1}});
                }),
                HasSubstr("append() after finish()"));
  });
}

TEST_F(RunLogOfTwoRanks, GivesEveryRunAFolderOfItsOwn) {
  train(1, [](RunLog& log) { log.finish(); });
  const std::string first = folders_[0];
  train(1, [](RunLog& log) { log.finish(); });
  EXPECT_NE(folders_[0], first);
  EXPECT_TRUE(base::file_exists(folders_[0] + "/plan.json"));
}

}  // namespace run_log_test
}  // namespace smp
