// d2d/channel/wire_set.cpp: see the header.
#include "d2d/channel/wire_set.h"

#include <algorithm>
#include <utility>

#include "d2d/watch/keep_alive.h"

namespace smp::d2d {

WireSet::WireSet(std::unique_ptr<KeepAlive> keep_alive) : keep_alive_(std::move(keep_alive)) {}

WireSet::WireSet(WireSet&&) noexcept = default;

WireSet::~WireSet() {
  while (!wires_.empty()) wires_.pop_back();
}

void WireSet::add(std::unique_ptr<Wire> wire, bool used) {
  if (used) polled_.push_back(wire.get());
  wires_.push_back(std::move(wire));
}

const Wire* WireSet::bound_to_one_thread() const noexcept {
  const auto bound = std::find_if(polled_.begin(), polled_.end(),
                                  [](const Wire* wire) { return !wire->takes_other_threads(); });
  return bound == polled_.end() ? nullptr : *bound;
}

bool WireSet::poll() {
  bool moved = false;
  for (auto* const wire : polled_) moved |= wire->poll();
  return moved;
}

bool WireSet::take_stir() noexcept {
  bool any = false;
  for (auto* const wire : polled_) any |= wire->take_stir();
  return any;
}

void WireSet::complete() {
  for (const auto& wire : wires_) wire->complete();
}

void WireSet::complete_beside(const Wire& control) {
  if (wires_.size() == 1) return;
  for (const auto& wire : wires_) {
    if (wire.get() != &control) wire->complete();
  }
}

void WireSet::check_links() {
  for (auto* const wire : polled_) wire->check_links();
  if (keep_alive_) keep_alive_->require_no_loss();
}

base::Doorbell* WireSet::doorbell() const noexcept {
  for (auto* const wire : polled_) {
    if (auto* const doorbell = wire->doorbell()) return doorbell;
  }
  return nullptr;
}

bool WireSet::drained() const noexcept {
  return std::all_of(wires_.begin(), wires_.end(),
                     [](const auto& wire) { return wire->drained(); });
}

bool WireSet::leave() {
  bool left = true;
  for (const auto& wire : wires_) left &= wire->leave();
  if (!keep_alive_) return left;
  if (left) {
    keep_alive_->leave();
  } else {
    keep_alive_->require_no_loss();
  }
  return left;
}

base::Nanoseconds WireSet::patience(bool unwinding) const noexcept {
  base::Nanoseconds longest = 0;
  for (const auto& wire : wires_) longest = std::max(longest, wire->patience(unwinding));
  return longest;
}

void WireSet::give_up(base::Nanoseconds waited, bool unwinding) noexcept {
  for (const auto& wire : wires_) wire->give_up(waited, unwinding);
}

void WireSet::set_handler(WireHandler* handler) noexcept {
  for (const auto& wire : wires_) wire->set_handler(handler);
}

}  // namespace smp::d2d
