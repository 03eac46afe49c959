// server/requests/request_answer.cpp: see the header.
#include "server/requests/request_answer.h"

#include <exception>

#include "base/check.h"
#include "server/protocol/exception_text.h"

namespace smp::server {

void RequestAnswer::begin(PpRank source, RequestId request, const ExecutionScope& scope) {
  core_.scopes.recorder.note(RequestKind::kBegun, source, request);
  core_.step->begins(scope.identity().phase, scope.identity().microbatch);
}

/// Sends the exception that is being handled.
void RequestAnswer::send_failure(PpRank source, RequestId request, const ExecutionScope& scope) {
  char who[256] = "";
  scope.describe(who, sizeof who);
  auto failure = failure_of(std::current_exception(), core_.port.rank(), who);
  core_.port.send(source, Message(ErrorResponse{request, std::move(failure)}));
}

void RequestAnswer::send_not_run(PpRank source, RequestId request, ModuleId module,
                                 std::int32_t microbatch, const char* what) {
  auto text =
      base::concat("rank ", core_.port.name(), ", module ", core_.scopes.modules.path(module),
                   ", microbatch ", microbatch, ": not run, because ", what, " that failed");
  core_.port.send(source,
                  Message(ErrorResponse{request, {core_.port.rank(), std::move(text), 0, true}}));
}

}  // namespace smp::server
