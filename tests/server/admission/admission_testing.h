// One rank's admission, and what starts there.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fiber/scheduler.h"
#include "schedule/schedule.h"
#include "server/admission/admission.h"

namespace smp::server::test {

/// Notes what starts, by the slots of requests.
class NotingStarter final : public RequestStarter {
 public:
  void start(ForwardTask&& task, bool input_failed) override {
    (input_failed ? failed : started).push_back(task.request.request.slot);
    forwards.push_back(std::move(task));
    if (on_forward) on_forward(forwards.back(), input_failed);
  }
  void start(BackwardTask&& task, bool input_failed) override {
    (input_failed ? failed : started).push_back(task.request.request.slot);
    backwards.push_back(std::move(task));
  }
  void ask(PpRank, const PassOn& output) override { asked.push_back(output.request.slot); }

  std::vector<std::uint32_t> started, failed;
  std::vector<std::uint32_t> asked;  // slots of sources
  std::vector<ForwardTask> forwards;
  std::vector<BackwardTask> backwards;
  std::function<void(const ForwardTask& task, bool input_failed)> on_forward;
};

class AdmissionTest : public testing::Test {
 protected:
  explicit AdmissionTest(std::unique_ptr<schedule::Schedule> schedule = schedule::make_simple(),
                         int microbatches = 6, int rank = 1)
      : schedule_(std::move(schedule)), progress_(*schedule_, microbatches, rank) {}

  /// Runs `body` on a fiber.
  void spawn(std::function<void()> body) {
    scheduler_.spawn(std::move(body), {}, 1 << 20);
    let_run();
  }
  void let_run() {
    for (int i = 0; i < 10; ++i) scheduler_.yield();
  }
  /// The microbatches of all that waits, as they came.
  std::vector<int> waiting() const {
    std::vector<int> all;
    for (const auto& waiting : list_) all.push_back(waiting.microbatch);
    return all;
  }
  std::vector<Reason> reasons() const {
    std::vector<Reason> all;
    for (const auto& waiting : list_) all.push_back(waiting.reason);
    return all;
  }

  fiber::Scheduler& scheduler_ = fiber::Scheduler::install();
  base::SteadyClock clock_;
  WorkTimes times_{clock_};
  WaitingList list_{clock_};
  NotingStarter starter_;
  std::unique_ptr<schedule::Schedule> schedule_;
  schedule::StepProgress progress_;
  Admission admission_{progress_, times_, list_, starter_};
};

}  // namespace smp::server::test
