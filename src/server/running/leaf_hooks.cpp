// server/running/leaf_hooks.cpp: few run at any time, so they are a list.
#include "server/running/leaf_hooks.h"

#include "fiber/scheduler.h"

namespace smp::server {
namespace {

thread_local LeafHooks* last = nullptr;

}  // namespace

LeafHooks::LeafHooks(std::uint32_t microbatch, std::uint32_t leaf, OwnPasses& passes) noexcept
    : microbatch_(microbatch),
      leaf_(leaf),
      passes_(passes),
      fiber_(fiber::current_fiber()),
      before_(last) {
  if (before_ != nullptr) before_->after_ = this;
  last = this;
}

LeafHooks::~LeafHooks() {
  if (before_ != nullptr) before_->after_ = after_;
  (after_ != nullptr ? after_->before_ : last) = before_;
}

const LeafHooks* LeafHooks::current() noexcept {
  const auto* const fiber = fiber::current_fiber();
  for (const auto* hooks = last; hooks != nullptr; hooks = hooks->before_) {
    if (hooks->fiber_ == fiber) return hooks;
  }
  return nullptr;
}

}  // namespace smp::server
