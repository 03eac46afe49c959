// server/execution.h: what a fiber is running: one module execution of one microbatch (paper §4.2).
#pragma once

#include "schedule/schedule.h"

namespace smp::server {

/// Lives on the stack of the fiber that runs it; FiberLocals::execution points to it.
struct Execution {
  int microbatch = -1;
  int index = 0;      ///< number of the execution within the microbatch on this rank; 0: the body
  bool late = false;  ///< its gradients follow the body's first backward
  schedule::Phase phase = schedule::Phase::kForward;
  int module = -1;  ///< number of the module; -1: the step body
  const char* path = "<body>";
};

}  // namespace smp::server
