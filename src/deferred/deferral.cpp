// deferred/deferral.cpp: a mark on the fiber.
#include "deferred/deferral.h"

namespace smp::deferred {
namespace {

const base::FiberLocal<Eager>& eager() {
  static const base::FiberLocal<Eager> scope;
  return scope;
}

}  // namespace

Eager::Eager() : scope_(eager(), this) {}

bool is_switched_off() { return eager().get() != nullptr; }

}  // namespace smp::deferred
