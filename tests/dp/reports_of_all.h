// What replicas tell each other at the end of a step, for tests of what they do with it.
#pragma once

#include <vector>

#include "d2d/collectives/communicator.h"
#include "dp/gradient_reducer.h"

namespace smp::dp {

inline std::vector<GradientReducer::Report> reports_of_all(d2d::Communicators& own,
                                                           const GradientReducer& reducer) {
  const auto report = reducer.report();
  std::vector<GradientReducer::Report> reports;
  for (auto& other : own.all().all_gather({report.forms + report.early, {}}, "reports")) {
    const auto forms = report.forms.size();
    reports.push_back({other.bytes.substr(0, forms), other.bytes.substr(forms), {}});
  }
  return reports;
}

}  // namespace smp::dp
