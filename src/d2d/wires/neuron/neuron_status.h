// d2d/wires/neuron/neuron_status.h: what calls of the Neuron runtime return, as errors.
// Threads: any.
#pragma once

#include <string>

#include "d2d/wires/neuron/neuron_core.h"
#include "smp/rank.h"

namespace smp::d2d {

/// NRT_STATUS of nrt_status.h: those that something here depends on. 8 and 12 do not exist; any
/// other number is a failure.
namespace neuron_status {
inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;
inline constexpr int kInvalid = 2;
inline constexpr int kResource = 4;
inline constexpr int kQueueFull = 7;
inline constexpr int kNotEnoughCores = 9;
inline constexpr int kExecutionUnitLost = 101;
inline constexpr int kCoreBusy = 1005;
}  // namespace neuron_status

/// Who made a call.
struct NeuronCaller {
  GlobalRank rank;
  AbsoluteCore core;
};

/// Returns the name and number of a status, as in "NRT_TIMEOUT (5)".
std::string text_of_status(int status);
/// Returns what the reader can do about it.
std::string remedy_of_status(int status);
/// Throws for a status that is not success.
/// @throws ResourceError  memory or slots of the core ran out (4)
/// @throws PeerLostError  all else
[[noreturn]] void throw_neuron_error(int status, const std::string& doing, const char* call,
                                     const NeuronCaller& caller);

}  // namespace smp::d2d
