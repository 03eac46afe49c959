// server/step/call_places.cpp: see the header.
#include "server/step/call_places.h"

#include <exception>

#include "smp/error.h"

namespace smp::server {

std::optional<module::CallPlace> CallPlaces::next() {
  auto* const scope = ExecutionScope::current();
  if (scope == nullptr || core_.step == nullptr) return std::nullopt;
  if (core_.step->failed() && std::uncaught_exceptions() == 0) {
    throw StepAborted{core_.port.rank().value()};
  }
  auto place = scope->next_place_in_program();
  place.step = static_cast<std::uint64_t>(core_.step->number);
  return place;
}

}  // namespace smp::server
