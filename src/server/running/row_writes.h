// server/running/row_writes.h: operators that write rows of a table which only this rank's samples
// name, seen before LibTorch runs them.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace smp::server {

/// The dispatch key under which they have kernels of ours (api/replicas/replica_writes.cpp); all
/// other operators pass it by, and nothing else uses it.
inline constexpr auto kRowWrites = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// While it lives, the fiber's operators are seen.
class SeesRowWrites {
 public:
  SeesRowWrites();

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace smp::server
