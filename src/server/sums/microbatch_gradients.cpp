// server/sums/microbatch_gradients.cpp: executions in the order of backward, and by parameter.
#include "server/sums/microbatch_gradients.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace smp::server {

std::uint32_t MicrobatchGradients::open(OrderKey order, bool after_first_backward) {
  if (opened == executions.size()) executions.emplace_back();
  auto& execution = executions[opened];
  execution.order = std::move(order);
  execution.after_first_backward = after_first_backward || forward_done;
  execution.closed = execution.recorded = false;
  execution.place = kNone;
  return opened++;
}

void MicrobatchGradients::clear() noexcept {
  forward_done = done = planned = false;
  for (; opened > 0; --opened) {
    executions[opened - 1].roots.clear();
    executions[opened - 1].waiters.clear();
  }
  cells.clear();
  waiters.clear();
  rest.clear();
}

void MicrobatchGradients::plan(ReachedLeaves& reached) {
  planned = true;
  find_places();
  reached.clear();
  for (const auto number : places) {
    const auto& execution = executions[number];
    if (!execution.closed) reached.walk(number, execution.roots);
  }
  list_reaching(reached);
}

/// Sorts the executions by descending key, since the last in one process is the first in backward.
void MicrobatchGradients::find_places() {
  places.clear();
  for (std::uint32_t number = 0; number < opened; ++number) {
    if (!executions[number].after_first_backward) places.push_back(number);
  }
  std::sort(places.begin(), places.end(), [&](std::uint32_t a, std::uint32_t b) {
    return executions[a].order > executions[b].order;
  });
  for (std::uint32_t place = 0; place < places.size(); ++place) {
    const auto& order = executions[places[place]].order;
    SMP_ASSERT(place == 0 || order != executions[places[place - 1]].order, "two executions are ",
               order.text());
    executions[places[place]].place = place;
  }
}

/// Turns the pairs, which were found by execution, into a list by parameter that keeps the order of
/// executions.
void MicrobatchGradients::list_reaching(const ReachedLeaves& reached) {
  if (cells.size() < reached.num_parameters()) cells.resize(reached.num_parameters());
  for (const auto& [parameter, execution] : reached.pairs()) ++cells[parameter].end;
  std::uint32_t first = 0;
  for (auto& own : cells) {
    own.next = first;
    first += std::exchange(own.end, first);
  }
  reaching.resize(first);
  for (const auto& [parameter, execution] : reached.pairs()) {
    reaching[cells[parameter].end++] = execution;
  }
}

}  // namespace smp::server
