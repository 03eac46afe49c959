// api/optimizer/guard_chosen.cpp: guards for an optimizer whose class is known at run time only.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <c10/util/Type.h>

#include <memory>
#include <string>
#include <typeinfo>

#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/replicas/replicas.h"
#include "base/check.h"
#include "smp/distributed_optimizer.h"

namespace smp::detail {
namespace {

/// Guards `chosen` if its class is exactly `Kind`; an object of a derived class would lose its own
/// part.
template <class Kind>
bool guard_as(std::unique_ptr<torch::optim::Optimizer>& chosen,
              std::shared_ptr<torch::optim::Optimizer>& result) {
  if (typeid(*chosen) != typeid(Kind)) return false;
  result = guard_moved(static_cast<Kind&>(*chosen));
  return true;
}

}  // namespace

std::shared_ptr<torch::optim::Optimizer> guard_chosen(
    std::unique_ptr<torch::optim::Optimizer> chosen) {
  using namespace torch::optim;
  const auto* const session = SessionParts::find_current();
  const auto who = session == nullptr
                       ? std::string()
                       : base::concat("rank ", session->rank.topology().rank(), ": ");
  SMP_REQUIRE(chosen != nullptr, who,
              "smp::DistributedOptimizer of a pointer to no optimizer; make the optimizer first, "
              "and give each only once");
  std::shared_ptr<Optimizer> result;
  const bool known = guard_as<SGD>(chosen, result) || guard_as<Adam>(chosen, result) ||
                     guard_as<AdamW>(chosen, result) || guard_as<Adagrad>(chosen, result) ||
                     guard_as<RMSprop>(chosen, result);
  if (known) return result;
  SMP_REQUIRE_AS(UnsupportedError, session == nullptr || !session->replicas.shards().active(), who,
                 "smp::DistributedOptimizer of a pointer to torch::optim::Optimizer, with "
                 "shard_optimizer_state: it points to a ",
                 c10::demangle(typeid(*chosen).name()),
                 ", whose own step() could not be refused; give a std::unique_ptr of that class, "
                 "or the optimizer by value");
  return chosen;
}

}  // namespace smp::detail
