// report/step_arrows.cpp: the events of each request, found by its caller and number.
#include "report/step_arrows.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace smp::report {
namespace {

using schedule::RequestEvent;

struct End {
  std::size_t rank;
  base::Nanoseconds time;
};

struct Request {
  std::vector<End> causes;  // the request itself, and tensors for it
  std::optional<End> begun, answered, received;
};

void add(Request& request, std::size_t rank, const RequestEvent& event) {
  const End end{rank, event.time};
  switch (event.kind) {
    case RequestEvent::Kind::kAsked:
    case RequestEvent::Kind::kPassedOn:
      request.causes.push_back(end);
      break;
    case RequestEvent::Kind::kBegun:
      request.begun = end;
      break;
    case RequestEvent::Kind::kAnswered:
      request.answered = end;
      break;
    case RequestEvent::Kind::kReceived:
      request.received = end;
      break;
  }
}

}  // namespace

std::vector<Arrow> arrows_of(const StepTimeline& timeline) {
  std::map<std::pair<std::int32_t, std::int64_t>, Request> requests;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    for (const auto& event : timeline.ranks[rank].requests) {
      add(requests[{event.caller, event.request}], rank, event);
    }
  }
  std::vector<Arrow> arrows;
  for (const auto& [name, request] : requests) {
    if (request.begun) {
      for (const auto& cause : request.causes) {
        arrows.push_back({cause.rank, request.begun->rank, cause.time, request.begun->time, false});
      }
    }
    if (request.answered && request.received) {
      arrows.push_back({request.answered->rank, request.received->rank, request.answered->time,
                        request.received->time, true});
    }
  }
  std::stable_sort(arrows.begin(), arrows.end(),
                   [](const Arrow& a, const Arrow& b) { return a.end < b.end; });
  return arrows;
}

}  // namespace smp::report
