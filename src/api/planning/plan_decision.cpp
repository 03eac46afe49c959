// api/planning/plan_decision.cpp: an error travels like a result, so that no rank is left waiting.
#include "api/planning/plan_decision.h"

#include <exception>
#include <utility>

#include "api/rank/exchange.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "server/protocol/exception_text.h"
#include "server/protocol/remote_exception.h"

namespace smp {
namespace {

/// The message of pp_rank 0 to the others.
struct Decision {
  enum class Fault { kNone, kUsage, kResource, kOther };
  Fault fault = Fault::kNone;
  std::string text;
  std::vector<std::string> results;
  std::uint8_t type = 0;  // of any other fault
};

Decision run(const std::function<std::vector<std::string>()>& decide) {
  using Fault = Decision::Fault;
  try {
    return {Fault::kNone, {}, decide()};
  } catch (const UsageError& error) {
    return {Fault::kUsage, error.what(), {}};
  } catch (const ResourceError& error) {
    return {Fault::kResource, error.what(), {}};
  } catch (...) {
    const auto failure = server::failure_of(std::current_exception(), PpRank(0), "");
    return {Fault::kOther, server::text_of(std::current_exception()), {}, failure.type};
  }
}

}  // namespace

std::vector<std::string> decided_by_first_rank(
    const Rank& rank, const std::function<std::vector<std::string>()>& decide) {
  const auto ranks = rank.groups().training_ranks();
  const auto own = ranks.rank() == 0 ? run(decide) : Decision();
  auto decision = value_of_first(ranks, own);
  using Fault = Decision::Fault;
  if (decision.fault != Fault::kNone) rank.reporting().leave_to_it(decision.text);
  SMP_REQUIRE_AS(UsageError, decision.fault != Fault::kUsage, decision.text);
  SMP_REQUIRE_AS(ResourceError, decision.fault != Fault::kResource, decision.text);
  if (decision.fault == Fault::kOther) {
    server::throw_remote({PpRank(0), decision.text, decision.type});
  }
  return std::move(decision.results);
}

}  // namespace smp
