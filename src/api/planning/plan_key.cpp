// api/planning/plan_key.cpp: everything as text, then hashed.
#include "api/planning/plan_key.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <cmath>
#include <string>

#include "base/check.h"
#include "base/files.h"
#include "base/machine/host_name.h"
#include "base/random.h"
#include "partition/plan/plan_cache.h"
#include "partition/plan/plan_check.h"
#include "server/protocol/execution_modes.h"
#include "smp/version.h"

namespace smp {
namespace {

using base::concat;

/// Returns the types in which operators run, and what times depend on.
std::string text_of_run(const Config& config) {
  std::string text = concat(" device ", config.device, " precision ", config.precision);
  if (config.trace_repeats > 0) text += concat(" threads ", at::get_num_threads());
  for (const auto& autocast : server::ExecutionModes::capture().autocast) {
    text += autocast.enabled ? concat(" autocast ", autocast.dtype) : " -";
  }
  return text;
}

std::string text_of_settings(const PlanKeyFacts& facts) {
  const Config& config = facts.config;
  std::string text =
      concat(SMP_VERSION, ' ', SMP_TORCH_VERSION, ' ', partitioning::program_identity(), ' ',
             facts.machine.stages, ' ', config.partition_strategy, ' ', config.keep_whole, ' ',
             config.activation_checkpointing, ' ', config.memory_weight, ' ', config.optimize, ' ',
             config.trace_repeats, ' ', config.pipeline, ' ',
             config.active_microbatches.value_or(0), ' ', facts.machine.promised_outputs, ' ',
             facts.preview.microbatches, ' ', facts.preview.grad, ' ', facts.optimizer_ratio, ' ',
             facts.gradient_copies, ' ', config.shard_optimizer_state, ' ', config.prescaled_batch,
             ' ', at::globalContext().allowTF32CuBLAS(), at::globalContext().allowTF32CuDNN());
  text += text_of_run(config);
  if (facts.preview.body != nullptr) text += concat(" body ", facts.preview.body->name());
  for (int i = 0; i < facts.preview.traced; ++i) {
    text += concat(" arguments ", facts.preview.arguments_key(i));
  }
  if (config.pipeline.starts_with("file:")) {
    text += concat(' ', base::read_file(config.pipeline.substr(5)));
  }
  return text;
}

/// Returns the step of half an octave in which a measured number lies. Measured numbers differ a
/// little from start to start, and plans depend on their magnitude. A number that lies on the
/// border of two steps costs a trace. Numbers that were set are taken as they are.
std::string step_of(double number, bool measured) {
  constexpr double kStepsOfAnOctave = 2;
  if (!measured) return concat(number);
  return concat(number > 0 ? std::lround(kStepsOfAnOctave * std::log2(number)) : 0);
}

/// Returns the machine as text. The host counts only if modules were timed by a clock.
std::string text_of_machine(const PlanKeyFacts& facts) {
  const auto& machine = facts.machine;
  const bool measured = facts.config.trace_repeats > 0;
  std::string text;
  for (const double speed : machine.speeds) text += concat(" speed ", speed);
  for (const auto memory : machine.memory) text += concat(" memory ", memory);
  text += concat(facts.config.stage_memory.empty() ? " offered" : " set", " messages ",
                 step_of(machine.latency, measured), ' ', step_of(machine.handling, measured), ' ',
                 step_of(machine.bytes_per_second, measured));
  if (measured) text += concat(" host ", base::host_name());
  for (const auto& device : machine.devices) text += concat(" device ", device);
  for (const auto& place : machine.places) {
    text += concat(" place ", place.node, ' ', place.socket, ' ', place.port);
  }
  for (const auto& link : machine.pairs) {
    text += concat(" pair ", link.latency, ' ', link.bytes_per_second);
  }
  if (machine.replicas.count > 1) {
    const auto& replicas = machine.replicas;
    text += concat(" replicas ", replicas.count, ' ', replicas.bucket_bytes, ' ',
                   replicas.all_get_sums, ' ', step_of(replicas.link.latency, measured), ' ',
                   step_of(replicas.link.bytes_per_second, measured));
  }
  if (machine.sharers.count > 1) {
    const auto& sharers = machine.sharers;
    text += concat(" sharers ", sharers.count, ' ', step_of(sharers.link.latency, measured), ' ',
                   step_of(sharers.handling, measured), ' ',
                   step_of(sharers.link.bytes_per_second, measured));
  }
  if (!machine.places.empty()) {
    for (const auto& link : {machine.across_sockets, machine.network}) {
      text += concat(" link ", step_of(link.latency, measured), ' ',
                     step_of(link.bytes_per_second, measured));
    }
  }
  return text;
}

std::string text_of_hosts(const simulate::Machine& machine) {
  std::string text;
  for (const auto& host : machine.oversubscribed) {
    text += concat(" cores ", host.cores, " of");
    for (const int stage : host.stages) text += concat(' ', stage);
  }
  return text;
}

std::string text_of_model(const PlanKeyFacts& facts) {
  std::string text;
  for (const auto& parameter : facts.model.tree.parameters) {
    if (parameter.state_shares > 1) text += concat(" shares ", parameter.state_shares);
  }
  for (const auto& pin : facts.pins) text += concat(" pin ", pin.path, '=', pin.pp_rank);
  for (const auto* module : facts.model.modules) {
    text += concat(module->name(), module->is_training() ? 't' : 'e');
    for (const auto& parameter : module->parameters(/*recurse=*/false)) {
      text += concat(parameter.requires_grad() ? '+' : '-', parameter.device());
    }
    for (const auto& buffer : module->buffers(/*recurse=*/false)) {
      if (buffer.defined()) text += concat(buffer.scalar_type(), buffer.sizes());
    }
  }
  return text;
}

}  // namespace

std::uint64_t plan_key(const PlanKeyFacts& facts) {
  const auto text = text_of_settings(facts) + text_of_machine(facts) +
                    text_of_hosts(facts.machine) + text_of_model(facts);
  return base::mix_key(model_hash(facts.model.tree, facts.machine.stages), text);
}

std::uint64_t model_hash(const partitioning::ModuleTree& tree, int pp_size) {
  const std::vector<int> all_on_first(tree.nodes.size(), 0);
  return partitioning::plan_of(tree, all_on_first, pp_size).model_hash();
}

}  // namespace smp
