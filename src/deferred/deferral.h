// deferred/deferral.h: whether smp::delay_param_initialization has an effect (the setting
// delayed_parameter_initialization).
#pragma once

#include "base/fiber_local.h"

namespace smp::deferred {

/// While it lives, modules that the running fiber builds get their values at once.
class Eager {
 public:
  Eager();

 private:
  base::FiberLocalScope<Eager> scope_;
};

bool is_switched_off();

}  // namespace smp::deferred
