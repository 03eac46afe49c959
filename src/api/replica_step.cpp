// api/replica_step.cpp: whatever happens in a replica, every rank takes part in both exchanges, so
// that nobody waits for one that has failed.
#include "api/replica_step.h"

#include <exception>
#include <utility>

#include "api/exchange.h"
#include "api/replica_gradients.h"
#include "api/runtime.h"
#include "api/step_facts.h"
#include "base/check.h"
#include "base/log.h"
#include "dp/loss_share.h"
#include "server/common_errors.h"
#include "server/exception_text.h"
#include "server/remote_exception.h"

namespace smp {
namespace {

/// How a rank's part of a step ended.
struct Ending {
  std::string failure;
  std::uint8_t type = 0;  // of the failure: what it is caught by
  ReplicaGradients::Forms forms;
};

std::string name_of(const d2d::Communicator& replicas, std::size_t replica) {
  return base::concat("replica ", replica, " (rank ", replicas.members()[static_cast<int>(replica)],
                      ")");
}

/// What `replica` says of itself, which is where it is printed.
[[noreturn]] void throw_failure(Runtime& runtime, const d2d::Communicator& replicas,
                                std::size_t replica, const std::string& what,
                                const Ending& ending) {
  const auto text = base::concat(name_of(replicas, replica), what, ": ", ending.failure);
  server::leave_to_another_rank(text, replicas.members()[static_cast<int>(replica)]);
  server::throw_remote({runtime.pp_rank(), text, ending.type});
}

/// Of the exception that is being handled: where it was thrown is said in front of it by others.
server::Failure current_failure(Runtime& runtime) {
  const std::string separator = ": ";
  auto failure = server::failure_of(std::current_exception(), runtime.pp_rank(), "");
  if (failure.text.starts_with(separator)) failure.text.erase(0, separator.size());
  if (failure.text.empty()) failure.text = "an error without a text";
  return failure;
}

}  // namespace

ReplicaStep::ReplicaStep(Runtime& runtime, bool learns)
    : runtime_(runtime), learns_(learns), shared_(members().size() > 1) {
  if (!shared_ || !learns) return;
  runtime.count_shared_step();
  runtime.replica_gradients().begin_step();
}

d2d::Communicator ReplicaStep::members() const {
  return learns_ ? runtime_.replicas() : runtime_.slice_holders();
}

double ReplicaStep::agree(Batch own, const std::string& loss) const {
  own.step = learns_ ? runtime_.shared_steps() : runtime_.server().steps() + 1;
  const auto batches = exchange(own);
  const auto replicas = members();
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (batches[i].problem.empty() || static_cast<int>(i) == replicas.rank()) continue;
    throw_failure(runtime_, replicas, i, " cannot run this step", {batches[i].problem, 0, {}});
  }
  require_same_steps(batches);
  require_same_facts(batches);
  std::vector<std::int64_t> rows;
  for (const auto& batch : batches) rows.push_back(batch.rows);
  return dp::loss_share(loss, rows, static_cast<std::size_t>(replicas.rank()));
}

std::vector<ReplicaStep::Batch> ReplicaStep::exchange(const Batch& own) const try {
  return gather_values(members(), own, "the start of a step in all replicas");
} catch (const PeerLostError& error) {
  throw PeerLostError(base::concat(
      "rank ", runtime_.topology().rank(), ": step ", own.step,
      " of this replica has none in another: ", error.what(),
      "; give every replica the same number of batches (smp::DistributedSampler does), or see that "
      "rank's log"));
}

void ReplicaStep::require_same_steps(const std::vector<Batch>& batches) const {
  const auto replicas = members();
  for (std::size_t i = 1; i < batches.size(); ++i) {
    SMP_REQUIRE(batches[i].step == batches[0].step, name_of(replicas, 0), " begins training step ",
                batches[0].step, ", ", name_of(replicas, i), " step ", batches[i].step,
                "; every replica makes the same steps with gradients; evaluate under "
                "torch::NoGradGuard, which needs no other replica");
    SMP_REQUIRE((batches[i].rows < 0) == (batches[0].rows < 0), "the batch is split in ",
                batches[0].rows < 0 ? name_of(replicas, i) : name_of(replicas, 0), " but not in ",
                batches[0].rows < 0 ? name_of(replicas, 0) : name_of(replicas, i),
                "; pass arguments of the same types in every replica");
  }
}

void ReplicaStep::require_same_facts(const std::vector<Batch>& batches) const {
  const auto ranks = members().members();
  for (std::size_t i = 1; i < batches.size(); ++i) {
    if (batches[i].facts == batches[0].facts) continue;
    const auto text = StepFacts::explain(ranks[0].value(), batches[0].facts,
                                         ranks[static_cast<int>(i)].value(), batches[i].facts);
    SMP_REQUIRE(text.empty(), text);
  }
}

void ReplicaStep::finish() const {
  if (!shared_) return;
  const auto replicas = members();
  const Ending own{
      {}, 0, learns_ ? runtime_.replica_gradients().forms() : ReplicaGradients::Forms{}};
  const auto endings = gather_values(replicas, own, "the end of a step in all replicas");
  std::vector<ReplicaGradients::Forms> forms;
  for (std::size_t i = 0; i < endings.size(); ++i) {
    if (!endings[i].failure.empty()) {
      throw_failure(runtime_, replicas, i, " failed in this step", endings[i]);
    }
    forms.push_back(endings[i].forms);
  }
  if (learns_) runtime_.replica_gradients().reduce(forms);
}

void ReplicaStep::fail() const noexcept {
  if (!shared_) return;
  try {
    const auto failure = current_failure(runtime_);
    const Ending own{
        failure.text.empty() ? "an error without a text" : failure.text, failure.type, {}};
    gather_values(members(), own, "the end of a step in all replicas");
  } catch (...) {  // they are gone; what ended the step here is thrown
    base::log(base::LogLevel::kInfo, "other replicas were not told of a failed step: ",
              server::text_of(std::current_exception()));
  }
}

}  // namespace smp
