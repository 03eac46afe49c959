// api/files/run_measures.cpp: each rank gives its own part, and all ranks get the whole.
#include "api/files/run_measures.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "api/rank/computing.h"
#include "api/rank/exchange.h"
#include "api/rank/rank_device.h"
#include "api/rank/shared_warnings.h"
#include "api/step/trace_numbers.h"
#include "base/clock.h"
#include "d2d/wire/wire.h"
#include "smp/codec.h"

namespace smp {
namespace {

using base::Nanoseconds;
using schedule::Span;
using schedule::StepTrace;

/// By stage: is it on the machine of the first?
std::vector<bool> stages_near_the_first(Rank& rank) {
  const auto& topology = rank.topology();
  const auto& port = rank.server().core().port;
  const auto near = topology.group(Group::kLocal, port.name(PpRank(0)).value());
  std::vector<bool> shares;
  for (int stage = 0; stage < port.size(); ++stage) {
    const int other = port.name(PpRank(stage)).value();
    shares.push_back(std::find(near.begin(), near.end(), other) != near.end());
  }
  return shares;
}

/// The messages that this rank sent to each stage of its pipeline since some moment.
struct Sent {
  Numbers messages, bytes;
  std::vector<std::string> paths;  ///< the path that they went over
};

Sent sent_since(Rank& rank, const d2d::ChannelCounters& before) {
  Sent sent;
  const auto& now = rank.channel().counters();
  const auto& port = rank.server().core().port;
  const auto memory =
      d2d::memory_kind(memory_device(rank.parts().device).type()).value_or(d2d::MemoryKind::kHost);
  for (int stage = 0; stage < port.size(); ++stage) {
    const GlobalRank name = port.name(PpRank(stage));
    const auto peer = name.index();
    const bool itself = name == port.name();
    sent.paths.push_back(itself ? "" : rank.channel().routes().path(name, memory));
    sent.messages.push_back(now.sent_to[peer].frames - before.sent_to[peer].frames);
    sent.bytes.push_back(now.sent_to[peer].tensor_bytes - before.sent_to[peer].tensor_bytes);
  }
  return sent;
}

}  // namespace

ClockOffset clock_of(Rank& rank) {
  const base::SteadyClock clock;
  return clock_offset(
      rank.groups().of(Group::kPp), [&] { return clock.now(); }, stages_near_the_first(rank));
}

report::StepTimeline gather_traces(Rank& rank, const StepTrace& own, const ClockOffset& clock) {
  report::StepTimeline timeline;
  const std::pair mine(to_numbers(moved_back(own, clock.offset)), clock.error);
  for (const auto& [numbers, error] :
       gather_values(rank.groups().of(Group::kPp), mine, "times of a step")) {
    timeline.ranks.push_back(to_trace(numbers));
    timeline.clock_error = std::max(timeline.clock_error, error);
  }
  return timeline;
}

report::Traffic gather_traffic(Rank& rank, const d2d::ChannelCounters& before, std::int64_t steps) {
  report::Traffic traffic{.steps = steps};
  const auto own = sent_since(rank, before);
  for (auto& sent : gather_values(rank.groups().of(Group::kPp), own, "messages of a run")) {
    traffic.messages.push_back(std::move(sent.messages));
    traffic.bytes.push_back(std::move(sent.bytes));
    traffic.paths.push_back(std::move(sent.paths));
  }
  return traffic;
}

std::vector<report::ComputingRanks> gather_computing(const Rank& rank) {
  const auto ranks = rank.groups().training_ranks();
  const auto own = own_computing();
  std::vector<Computing> all;
  for (auto& [threads, processor] :
       gather_values(ranks, std::pair(own.threads, own.processor), "what ranks compute with")) {
    all.push_back({threads, std::move(processor)});
  }
  std::vector<report::ComputingRanks> rows;
  for (const auto& [alike, computing] : alike_ranks(ranks.members().ranks(), all)) {
    rows.push_back({names_of(alike), computing.threads, computing.processor});
  }
  return rows;
}

StepTrace without_details(const StepTrace& trace) {
  StepTrace short_trace = trace;
  Span all;
  all.end = trace.busy_wall();
  all.cpu = trace.busy_cpu();
  short_trace.spans = {all};
  short_trace.requests.clear();
  short_trace.between.clear();
  return short_trace;
}

StepTiming timing_of(const std::vector<StepTrace>& traces) {
  Nanoseconds start = traces.front().start;
  Nanoseconds end = traces.front().end;
  StepTiming timing;
  for (const StepTrace& trace : traces) {
    start = std::min(start, trace.start);
    end = std::max(end, trace.end);
    timing.oversubscribed |= trace.oversubscribed;
  }
  timing.seconds = static_cast<double>(end - start) / 1e9;
  timing.bubble = schedule::bubble(traces);
  return timing;
}

std::int64_t weights_of(const DistributedModelBase& model, at::Device device) {
  std::int64_t bytes = 0;
  for (const auto& parameter : model.parameters()) {
    const auto& memory = parameter.unsafeGetTensorImpl()->unsafe_storage();  // of others: none
    if (memory && memory.device() == device) bytes += static_cast<std::int64_t>(memory.nbytes());
  }
  return bytes;
}

}  // namespace smp
