// api/rank/agreement.h: ranks find out together whether they agree.
#pragma once

#include <cstdint>

#include "d2d/collectives/communicator.h"

namespace smp {

/// Throws UsageError, on every rank and naming the first that differs, unless `value` is equal on
/// all members of `ranks`.
void require_equal(const d2d::Communicator& ranks, std::uint64_t value, const char* what,
                   const char* remedy);

}  // namespace smp
