// api/session/hooks.cpp: see the header.
#include "smp/program/hooks.h"

#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "smp/distributed_model.h"

namespace smp {

PostStepHook register_post_step_hook(std::function<void()> hook) {
  const auto& session = SessionParts::current();
  SMP_REQUIRE(!session.rank.in_step(), "rank ", session.rank.topology().rank(),
              ": smp::register_post_step_hook was called inside a step; call it between steps");
  SMP_REQUIRE(hook != nullptr, "smp::register_post_step_hook of an empty function");
  auto kept = std::make_shared<const std::function<void()>>(std::move(hook));
  session.state.after_steps(kept);
  return PostStepHook(std::move(kept));
}

PostPartitionHook register_post_partition_hook(DistributedModelBase& model,
                                               std::function<void()> hook) {
  SMP_REQUIRE(hook != nullptr, "smp::register_post_partition_hook of an empty function");
  auto kept = std::make_shared<const std::function<void()>>(std::move(hook));
  model.on_placed([weak = std::weak_ptr(kept)] {
    if (const auto alive = weak.lock()) (*alive)();
  });
  return PostPartitionHook(std::move(kept));
}

}  // namespace smp
