// module/kept_results.cpp: see kept_results.h.
#include "module/kept_results.h"

namespace smp::module {

const base::FiberLocal<KeptResults>& kept_results() {
  static const base::FiberLocal<KeptResults> results;
  return results;
}

KeptResults* KeptResults::current() noexcept { return kept_results().get(); }

}  // namespace smp::module
