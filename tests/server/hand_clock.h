// A clock that a test sets.
#pragma once

#include "base/clock.h"

namespace smp::server {

class HandClock final : public base::Clock {
 public:
  base::Nanoseconds now() const noexcept override { return time; }
  base::Nanoseconds time = 100 * base::kSecond;
};

}  // namespace smp::server
