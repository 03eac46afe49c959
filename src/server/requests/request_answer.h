// server/requests/request_answer.h: runs what another rank asked for, and tells it what came of it.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

#include "server/step/failure_control.h"
#include "server/step/server_core.h"
#include "smp/error.h"

namespace smp::server {

/// Answers requests of other ranks. Threads: the rank's.
class RequestAnswer {
 public:
  RequestAnswer(ServerCore& core, FailureControl& failures) : core_(core), failures_(failures) {}

  /// Sends the response that `run` returns. If `run` throws, calls `failed`, then sends the
  /// exception. Runs on a worker fiber, which `run` may suspend.
  template <class Run>
  void send(PpRank source, RequestId request, ExecutionScope& scope, Run&& run,
            c10::function_ref<void()> failed) {
    begin(source, request, scope);
    const WorkTimes::Measured measured(core_.times, core_.step->progress, scope);
    try {
      if (core_.step->failed()) failures_.throw_aborted();
      auto response = run();
      response.request = request;
      // First: its receiver may go on before this thread does.
      core_.scopes.recorder.note(RequestKind::kAnswered, source, request);
      core_.port.send(source, response);
    } catch (const StepAborted&) {
      throw;
    } catch (...) {
      failed();
      send_failure(source, request, scope);
    }
  }
  /// Answers that the request was not run because `what` ("an argument was promised by a call") has
  /// failed. Safe in a poll.
  void send_not_run(PpRank source, RequestId request, ModuleId module, std::int32_t microbatch,
                    const char* what);

 private:
  void begin(PpRank source, RequestId request, const ExecutionScope& scope);
  void send_failure(PpRank source, RequestId request, const ExecutionScope& scope);

  ServerCore& core_;
  FailureControl& failures_;
};

}  // namespace smp::server
