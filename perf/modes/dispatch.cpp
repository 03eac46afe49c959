// perf/modes/dispatch.cpp: see the header.
#include "modes/dispatch.h"

#include <optional>
#include <vector>

#include "fiber/scheduler.h"
#include "modes/recording.h"
#include "server/step/worker_pool.h"
#include "smp/smp.h"

namespace smp::perf::modes {
namespace {

/// Microseconds a task that does nothing: from the look for messages that finds it to its end, when
/// the worker that ran it is idle again, among all that a rank of a session looks for.
double dispatch_us() {
  int left = rounds(10000);
  const int tasks = left;
  fiber::Event done;
  server::WorkerPool workers(
      std::size_t{1} << 20, [](server::WorkerTask&&) {},
      [&] {
        if (left == 0) done.signal();
      });
  const auto poll = fiber::Scheduler::instance().add_poll([&] {
    if (left == 0 || workers.busy() > 0) return false;
    --left;
    workers.launch(server::BodyTask{0}, 0);
    return true;
  });
  return microseconds([&] { done.wait({"tasks that do nothing", "", -1, -1}); }) / tasks;
}

/// Nanoseconds a span, with a message that is noted in it.
double recorder_ns() {
  constexpr int kSpans = 10000;
  auto& recorder = Recording::recorder();
  const auto time = microseconds([&] {
    for (int i = 0; i < kSpans; ++i) {
      recorder.begin(0, 0, schedule::Phase::kForward);
      recorder.note(server::RequestKind::kAsked, PpRank(0), {});
      recorder.end();
    }
  });
  static_cast<void>(recorder.take());
  return 1000 * time / kSpans;
}

}  // namespace

void report_dispatch(std::optional<Report>& report, const InSession& in_session) {
  std::vector<double> times;
  in_session(Mode::kStatic, [&] {
    for (int round = 0; round < rounds(20); ++round) {
      if (rank() == 0) times.push_back(dispatch_us());
    }
    barrier();
  });
  if (report) report->add_samples("dispatch.us_per_task", times, "us", "aim: at most 1");
}

void report_recorder(std::optional<Report>& report, const InSession& in_session) {
  std::vector<double> off, on;
  in_session(Mode::kDynamic, [&] {
    for (int round = 0; round < rounds(20); ++round) {
      off.push_back(recorder_ns());
      const Recording recording;
      on.push_back(recorder_ns());
    }
    barrier();
  });
  if (!report) return;
  report->add_samples("recorder.off.ns_per_span", off, "ns",
                      "with one message; a remote call has two spans a direction");
  report->add_samples("recorder.on.ns_per_span", on, "ns", "likewise");
}

}  // namespace smp::perf::modes
