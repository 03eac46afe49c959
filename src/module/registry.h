// module/registry.h: the calls that other ranks may ask this process to run.
#pragma once

#include "smp/detail/call.h"

namespace smp::module {

/// Throws UsageError, naming both calls, if two registered calls have one key. smp::init asks it.
void require_distinct_calls();

}  // namespace smp::module
