// module/kept_results.h: what came from other ranks while code ran that may run a second time.
#pragma once

#include <exception>

#include "base/fiber_local.h"
#include "smp/detail/call.h"

namespace smp::module {

/// The results that other ranks gave to a piece of code, in order: its remote calls and its
/// collectives. When the code runs again, it gets them from here, and nobody is asked. Threads: the
/// rank's.
class KeptResults {
 public:
  virtual ~KeptResults() = default;

  /// True while the code runs again.
  virtual bool replays() const noexcept = 0;
  /// Keeps a result, the first time. Later writes to its tensors do not change what is kept.
  virtual void keep(const Packet& result) = 0;
  /// Keeps what a remote call has thrown instead, which code may have caught.
  virtual void keep_thrown(std::exception_ptr thrown) = 0;
  /// Returns the next result, or throws what was thrown; with tensors that need gradients where the
  /// first ones did.
  /// @throws UsageError  there were fewer the first time.
  virtual Packet take() = 0;

  /// Those of the code that the running fiber is in; nullptr: it will not run again.
  static KeptResults* current() noexcept;
  /// Sets them while it lives.
  class Scope;
};

/// The fiber's own.
const base::FiberLocal<KeptResults>& kept_results();

class KeptResults::Scope : private base::FiberLocalScope<KeptResults> {
 public:
  explicit Scope(KeptResults* results) : FiberLocalScope(kept_results(), results) {}
};

}  // namespace smp::module
