// api/state/step_kinds.cpp: a kind is a hash of who runs, and in which modes.
#include "api/state/step_kinds.h"

#include <typeindex>

#include "api/rank/rank.h"
#include "base/random.h"

namespace smp {

StepKinds::Kind StepKinds::kind_of(Rank& rank, const std::type_info& body, bool grad) {
  const auto key = base::mix_key(std::type_index(body).hash_code(), grad ? 1 : 0);
  return base::mix_key(key, rank.server().settings().flags().training_key());
}

}  // namespace smp
