// api/rank/reporting_rank.cpp: see the header.
#include "api/rank/reporting_rank.h"

#include "alive/common_errors.h"
#include "smp/error.h"

namespace smp {

ReportingRank::ReportingRank(const RankParts& parts)
    : rank_(parts.ranks_there(parts.training_group()).front()),
      elsewhere_(parts.mpi != nullptr && rank_ != GlobalRank(parts.topology.rank())) {}

void ReportingRank::leave_to_it(const std::string& text) const {
  if (elsewhere_) server::leave_to_another_rank(text, rank_);
}

void ReportingRank::report_once(const std::function<void()>& check) const {
  try {
    check();
  } catch (const Error& error) {
    leave_to_it(error.what());
    throw;
  }
}

}  // namespace smp
