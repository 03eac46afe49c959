// server/step/server_options.h: settings of one rank's server, and what it counts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smp::server {

struct ServerOptions {
  std::size_t fiber_stack_bytes = 1 << 20;  ///< of each worker
  std::uint64_t seed = 0;                   ///< of all random numbers of modules and bodies
  double stall_seconds = 30;   ///< without progress, after which a report is made; 0: never
  double abort_seconds = 600;  ///< without progress, after which waits end; 0: never
  bool oversubscribed = false;
  bool promised_outputs = true;  ///< remote calls return before their answers
  bool static_mode = false;      ///< steps like those before do without control messages
};

/// Counts since construction; requests follow closed formulas (tests, docs).
struct ServerCounters {
  std::uint64_t forward_requests = 0;   ///< sent
  std::uint64_t backward_requests = 0;  ///< sent
  std::uint64_t promised = 0;           ///< forward requests whose answers were not awaited
  std::uint64_t passed_on = 0;          ///< arguments and gradients that went past this rank
  std::uint64_t early = 0;              ///< losses whose backward was asked for before they came
  std::uint64_t fetched = 0;            ///< promised outputs whose values this rank asked for
  std::uint64_t executed_forward = 0;
  std::uint64_t executed_backward = 0;
  std::uint64_t records_left = 0;  ///< records that neither backward nor a release ended
  std::uint64_t swallowed = 0;     ///< routed calls made while unwinding, answered with nothing
  std::uint64_t replayed = 0;      ///< steps that did without control messages; pp_rank 0 only
};

}  // namespace smp::server
