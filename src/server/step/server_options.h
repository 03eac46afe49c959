// server/step/server_options.h: settings of one rank's server, and what it counts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "smp/config.h"

namespace smp::server {

/// What of the settings concerns a server (smp/config.h says more of each).
struct ServerOptions {
  explicit ServerOptions(const Config& config = {})
      : fiber_stack_bytes(static_cast<std::size_t>(config.fiber_stack_bytes)),
        seed(config.seed),
        stall_seconds(config.stall_seconds),
        abort_seconds(config.abort_seconds),
        promised_outputs(config.promised_outputs && (!config.static_mode || config.fast_mode)),
        static_mode(config.static_mode),
        fp32_grad_accumulation(config.fp32_grad_accumulation) {}

  std::size_t fiber_stack_bytes;
  std::uint64_t seed;
  double stall_seconds;
  double abort_seconds;
  bool promised_outputs;        ///< remote calls return before their answers
  bool static_mode;             ///< steps like those before do without control messages
  bool fp32_grad_accumulation;  ///< gradients of 16 bits are added in float32
  bool oversubscribed = false;
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
