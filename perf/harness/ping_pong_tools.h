// perf/harness/ping_pong_tools.h: how long a message takes from one process to another of this
// machine, as programs say that come with other libraries.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace smp::perf {

/// A program that sends a message there and back.
struct PingPongTool {
  std::string name;
  std::string note;
  bool writes_anew;  ///< what it sends, before each trip
  /// A shell command that prints the time, for messages of `bytes` bytes, `trips` times there and
  /// back.
  std::function<std::string(std::size_t bytes, int trips)> command;
  /// Microseconds one way, from what it printed; nothing if that is something else.
  std::function<std::optional<double>(const std::string& printed)> read;
};

/// UCX's `ucx_perftest` (Debian: ucx-utils), libfabric's `fi_pingpong` through shared memory
/// (libfabric-bin), and `plain_mpi` as a job of its own without copies from process to process.
/// @param plain_mpi  a program and options with which two ranks print "us: NUMBER"; the number of
/// bytes is added, and it decides itself how many trips it makes
std::vector<PingPongTool> ping_pong_tools(const std::string& plain_mpi);

/// Runs it, for at most a minute; nothing if it is not installed or fails. Blocks.
std::optional<double> one_way_us(const PingPongTool& tool, std::size_t bytes, int trips);

}  // namespace smp::perf
