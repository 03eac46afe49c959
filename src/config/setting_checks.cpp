// config/setting_checks.cpp: one function for each group of settings that concern each other.
#include "config/setting_checks.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "base/machine/device.h"
#include "base/text/edit_distance.h"
#include "base/text/excerpt.h"

namespace smp::base {
namespace {

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

void SettingChecks::run(int world_size) {
  check_world(world_size);
  check_placement();
  check_stage_weights();
  check_devices();
  check_pipeline();
  check_masters();
}

void SettingChecks::check_world(int started) {
  if (started <= 0) return;
  check_degrees(started);
  if (!values_.active_microbatches) {
    values_.active_microbatches = 2 * values_.pipeline_parallel_degree.value_or(1) + 2;
  }
}

/// Pipelines are made of what tensor parallelism leaves: each stage has that many ranks.
void SettingChecks::check_degrees(int world) {
  const int tp = values_.tensor_parallel_degree;
  const auto name = given_.named("tensor_parallel_degree");
  if (world % tp != 0) {
    problem(name, ": ", world, world == 1 ? " rank was" : " ranks were",
            " started, which cannot be divided by ", tp, "; start a multiple of ", tp,
            " ranks (mpirun -n ", tp, "), or set another degree");
  } else if (tp > 1 && !values_.ddp) {
    problem(name, " makes ", tp, " ranks that read different samples, but ", given_.named("ddp"),
            "; leave one of the keys out");
  } else {
    check_degree(world, tp);
  }
}

void SettingChecks::check_degree(int world, int tp) {
  auto& degree = values_.pipeline_parallel_degree;
  if (!degree) degree = world / tp;
  const int ranks = *degree * tp;  // of one pipeline
  const auto with = tp > 1 ? " with " + given_.named("tensor_parallel_degree") : std::string();
  if (ranks > world) {
    problem(given_.named("pipeline_parallel_degree"), with, ": needs ", ranks, " ranks, but ",
            world, world == 1 ? " was" : " were", " started; start ", ranks, " (mpirun -n ", ranks,
            "), or leave the key out to use all ranks");
  } else if (world % ranks != 0) {
    problem(given_.named("pipeline_parallel_degree"), with, ": ", world,
            " ranks cannot be divided into pipelines of ", ranks, "; start a multiple of ", ranks,
            " ranks, or leave the key out");
  } else if (ranks < world && !values_.ddp) {
    problem(given_.named("pipeline_parallel_degree"), " of ", world, " ranks makes ",
            world / *degree, " replicas, but ", given_.named("ddp"), "; start ", *degree,
            " ranks, or leave one of the keys out");
  }
}

void SettingChecks::check_placement() {
  const auto& stages = values_.pipeline_parallel_degree;
  const auto& stage = values_.default_partition;
  if (stage && stages && *stage >= *stages) {
    problem(given_.named("default_partition"), ": there are ", *stages, " stages, numbered from 0");
  }
  if (!values_.auto_partition && !stage && values_.plan_file.empty()) {
    problem(given_.named("auto_partition"),
            ": default_partition is not set; set it to the stage of every module that is not "
            "placed by hand, for example 0");
  }
}

void SettingChecks::check_stage_weights() {
  const auto stages = static_cast<std::size_t>(values_.pipeline_parallel_degree.value_or(0));
  if (stages == 0) return;
  const auto speeds = values_.stage_speeds.size(), memory = values_.stage_memory.size();
  if (speeds != 0 && speeds != stages) {
    problem(given_.named("stage_speeds"), ": ", speeds, " numbers for ", stages,
            " stages; give one per stage");
  }
  if (memory > 1 && memory != stages) {
    problem(given_.named("stage_memory"), ": ", memory, " numbers for ", stages,
            " stages; give one per stage, or one for all");
  }
}

void SettingChecks::check_devices() {
  const auto stages = static_cast<std::size_t>(values_.pipeline_parallel_degree.value_or(0));
  const auto names = split_devices(values_.devices, stages == 0 ? 1 : stages);
  for (const std::string& name : std::set(names.begin(), names.end())) {
    if (find_device(name) != nullptr) continue;
    problem(given_.named("devices"), ": there is no device \"", excerpt(name), "\"",
            did_you_mean(name, device_names()), "; known are ", list_of(device_names()));
  }
  if (names.empty()) return;
  if (stages != 0 && names.size() != stages) {
    problem(given_.named("devices"), ": ", names.size(), " devices for ", stages,
            " stages; give one per stage, or one for all");
  }
  if (values_.trace_repeats > 0) {
    problem(given_.named("devices"), " contradicts ", given_.named("trace_repeats"),
            ": a clock measures this machine only; keep one");
  }
  if (values_.skip_tracing) {
    problem(given_.named("devices"), " contradicts ", given_.named("skip_tracing"),
            ": what is not run cannot be priced; keep one");
  }
}

void SettingChecks::check_modes() {
  if (!given_.given("fast_mode")) return;
  if (!values_.fast_mode && !values_.static_mode) {
    warnings_.push_back(
        concat(given_.named("fast_mode"),
               " has no effect without static_mode; promised_outputs = false makes results go "
               "through their callers"));
  }
  if (!values_.fast_mode) return;
  if (!values_.static_mode) {
    problem(given_.named("fast_mode"),
            " needs static_mode; set static_mode to true as well, or leave "
            "fast_mode out: without static_mode promised_outputs does what it does");
  }
  if (!values_.promised_outputs) {
    problem(given_.named("fast_mode"), " contradicts ", given_.named("promised_outputs"),
            "; keep one");
  }
}

void SettingChecks::check_pipeline() {
  check_modes();
  const auto count = values_.loss_weights.size();
  if (values_.loss == "weights" && count != static_cast<std::size_t>(values_.microbatches)) {
    problem("loss_weights has ", count, " numbers for ", given_.named("microbatches"),
            "; give one per microbatch");
  }
  if (values_.loss != "weights" && count > 0) {
    problem(given_.named("loss_weights"), " has no effect with ", given_.named("loss"),
            "; set loss to \"weights\" or remove the weights");
  }
  if (!given_.given("active_microbatches") || !values_.active_microbatches) return;
  if (*values_.active_microbatches > values_.microbatches) {
    warnings_.push_back(concat(given_.named("active_microbatches"), " is more than ",
                               given_.named("microbatches")));
  }
  if (values_.pipeline != "interleaved") {
    warnings_.push_back(concat(given_.named("active_microbatches"), " has no effect with ",
                               given_.named("pipeline"),
                               "; set pipeline to \"interleaved\" or remove it"));
  }
}

void SettingChecks::check_masters() {
  if (!values_.master_weights || !values_.stochastic_rounding) return;
  problem(given_.named("master_weights"), " and ", given_.named("stochastic_rounding"),
          ": rounding by chance is for parameters without float32 values; keep one of the two");
}

}  // namespace smp::base
