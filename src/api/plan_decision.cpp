// api/plan_decision.cpp: an error travels like a result, so that no rank is left waiting.
#include "api/plan_decision.h"

#include <exception>
#include <utility>

#include "api/exchange.h"
#include "api/runtime.h"
#include "base/check.h"
#include "server/exception_text.h"

namespace smp {
namespace {

/// What pp_rank 0 tells the others.
struct Decision {
  enum class Fault { kNone, kUsage, kResource, kOther };
  Fault fault = Fault::kNone;
  std::string text;
  std::vector<std::string> results;
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
    return {Fault::kOther, server::text_of(std::current_exception()), {}};
  }
}

}  // namespace

std::vector<std::string> decided_by_first_rank(
    Runtime& runtime, const std::function<std::vector<std::string>()>& decide) {
  const auto own = runtime.is_first_stage() ? run(decide) : Decision();
  auto decision = value_of_first(runtime.communicator(Group::kPp), own);
  using Fault = Decision::Fault;
  SMP_REQUIRE_AS(UsageError, decision.fault != Fault::kUsage, decision.text);
  SMP_REQUIRE_AS(ResourceError, decision.fault != Fault::kResource, decision.text);
  if (decision.fault == Fault::kOther) throw RemoteError(decision.text, 0);
  return std::move(decision.results);
}

}  // namespace smp
