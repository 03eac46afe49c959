// d2d/wire_probe.h: whether a wire carries what it is given, tried before it is used.
#pragma once

#include <string>

#include "base/clock.h"
#include "d2d/wire.h"

namespace smp::d2d {

/// Every member sends every other one control bytes and data, and looks at what comes. All members
/// call it, before anything else is sent; blocks, for `patience` if something does not come.
/// @return what is wrong, with the rank it was to come from; empty: nothing
std::string probe(Wire& wire, base::Nanoseconds patience);

}  // namespace smp::d2d
