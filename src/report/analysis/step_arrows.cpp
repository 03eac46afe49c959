// report/analysis/step_arrows.cpp: the events of each request, found by its caller and number.
#include "report/analysis/step_arrows.h"

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

/// The name of a request: its caller's rank and its number.
using Name = std::pair<std::int32_t, std::int64_t>;

struct Request {
  std::vector<End> causes;   // the request itself, and tensors for it
  std::vector<Name> makers;  // requests whose outputs came unasked
  std::optional<End> begun, answered, received;
};

/// All requests of a step, from the events of its ranks.
class Requests {
 public:
  explicit Requests(const StepTimeline& timeline) {
    for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
      Request* latest = nullptr;  // that has begun
      for (const auto& event : timeline.ranks[rank].requests) add(rank, event, latest);
    }
  }

  const std::map<Name, Request>& all() const noexcept { return all_; }
  /// Returns the ends from which the request's inputs were sent. An output that came unasked was
  /// sent when the request that made it was answered.
  std::vector<End> causes_of(const Request& request) const {
    auto causes = request.causes;
    for (const auto& name : request.makers) {
      const auto maker = all_.find(name);
      if (maker == all_.end() || !maker->second.answered) continue;
      const auto& left = *maker->second.answered;
      causes.push_back({left.rank, std::min(left.time, request.begun->time)});
    }
    return causes;
  }

 private:
  void add(std::size_t rank, const RequestEvent& event, Request*& latest);

  std::map<Name, Request> all_;
};

void Requests::add(std::size_t rank, const RequestEvent& event, Request*& latest) {
  const Name name{event.caller, event.request};
  if (event.kind == RequestEvent::Kind::kTook) {
    if (latest != nullptr) latest->makers.push_back(name);
    return;
  }
  auto& request = all_[name];
  const End end{rank, event.time};
  switch (event.kind) {
    case RequestEvent::Kind::kAsked:
    case RequestEvent::Kind::kPassedOn:
      request.causes.push_back(end);
      break;
    case RequestEvent::Kind::kBegun:
      request.begun = end;
      latest = &request;
      break;
    case RequestEvent::Kind::kAnswered:
      request.answered = end;
      break;
    case RequestEvent::Kind::kReceived:
      request.received = end;
      break;
    case RequestEvent::Kind::kTook:
      break;
  }
}

}  // namespace

std::vector<Arrow> arrows_of(const StepTimeline& timeline) {
  const Requests requests(timeline);
  std::vector<Arrow> arrows;
  for (const auto& [name, request] : requests.all()) {
    if (request.begun) {
      for (const auto& cause : requests.causes_of(request)) {
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
