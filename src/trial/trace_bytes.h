// trial/trace_bytes.h: traces as bytes, for another process of the same program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "simulate/trace.h"

namespace smp::partitioning {

[[nodiscard]] std::string traces_to_bytes(const std::vector<simulate::Trace>& traces);
/// Restores what traces_to_bytes() wrote. @throws InternalError  these are not the bytes of traces
[[nodiscard]] std::vector<simulate::Trace> traces_from_bytes(std::string_view bytes);

}  // namespace smp::partitioning
