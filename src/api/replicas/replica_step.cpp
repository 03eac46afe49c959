// api/replicas/replica_step.cpp: whatever happens in a replica, every rank takes part in both
// exchanges, so that nobody waits for one that has failed.
#include "api/replicas/replica_step.h"

#include <exception>
#include <utility>

#include "alive/common_errors.h"
#include "api/rank/exchange.h"
#include "api/rank/rank.h"
#include "api/replicas/replicas.h"
#include "api/state/step_facts.h"
#include "base/check.h"
#include "base/log.h"
#include "dp/loss_share.h"
#include "server/protocol/exception_text.h"
#include "server/protocol/remote_exception.h"
#include "smp/join.h"

namespace smp {
namespace {

/// The ending of a rank's part of a step.
struct Ending {
  std::string failure;
  std::uint8_t type = 0;  // of the failure: what it is caught by
  ReplicaGradients::Reports gradients;
  ReplicaWrites::Report shortened;
};

std::string name_of(const d2d::Communicator& replicas, std::size_t replica) {
  return base::concat("replica ", replica, " (rank ", replicas.members()[static_cast<int>(replica)],
                      ")");
}

/// What `replica` says of itself, which is where it is printed.
[[noreturn]] void throw_failure(Rank& rank, const d2d::Communicator& replicas, std::size_t replica,
                                const std::string& what, const Ending& ending) {
  const auto text = base::concat(name_of(replicas, replica), what, ": ", ending.failure);
  server::leave_to_another_rank(text, replicas.members()[static_cast<int>(replica)]);
  server::throw_remote({rank.pp_rank(), text, ending.type});
}

/// Of the exception that is being handled: where it was thrown is said in front of it by others.
server::Failure current_failure(Rank& rank) {
  const std::string separator = ": ";
  auto failure = server::failure_of(std::current_exception(), rank.pp_rank(), "");
  if (failure.text.starts_with(separator)) failure.text.erase(0, separator.size());
  if (failure.text.empty()) failure.text = "an error without a text";
  return failure;
}

}  // namespace

ReplicaStep::ReplicaStep(Rank& rank, Replicas& replicas, bool learns)
    : rank_(rank), replicas_(replicas), learns_(learns), shared_(members().size() > 1) {
  const bool among_all = shared_ && learns;
  SMP_REQUIRE(!among_all || replicas.join() == nullptr || replicas.join()->num_active() > 0,
              "rank ", rank.topology().rank(),
              ": a step with gradients after the last round of smp::Join, in which no replica had "
              "a batch; end the Join (its scope) first");
  rank.expect_step(among_all);
}

d2d::Communicator ReplicaStep::members() const {
  return learns_ ? rank_.groups().replicas() : rank_.groups().slice_holders();
}

double ReplicaStep::agree(Batch own, const std::string& loss) const {
  own.step = learns_ ? rank_.shared_steps() : rank_.server().steps() + 1;
  const auto batches = exchange(own);
  const auto replicas = members();
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (batches[i].problem.empty() || static_cast<int>(i) == replicas.rank()) continue;
    throw_failure(rank_, replicas, i, " cannot run this step", {batches[i].problem, 0, {}, {}});
  }
  require_same_steps(batches);
  require_same_facts(batches);
  require_same_counts(batches);
  require_same_samples(batches);
  return share_of_loss(batches, loss);
}

bool ReplicaStep::idle() const noexcept {
  const auto* join = replicas_.join();
  return shared_ && learns_ && join != nullptr && !join->active();
}

/// True if the batch of `other` counts besides this rank's. With a prescaled batch one rank of each
/// group counts: the one with this rank's tp_rank.
bool ReplicaStep::counts_apart(GlobalRank other) const {
  if (rank_.groups().ranks_of_batch() == 1) return true;
  return rank_.topology().coordinates(other.value()).tp == rank_.topology().tp_rank();
}

double ReplicaStep::share_of_loss(const std::vector<Batch>& batches,
                                  const std::string& loss) const {
  if (!learns_) return 1;
  std::vector<std::int64_t> rows;  // of different batches, in replicas that have some
  std::size_t own = 0;
  int all = 0;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const bool is_own = static_cast<int>(i) == members().rank();
    if (!is_own && !counts_apart(members().members()[static_cast<int>(i)])) continue;
    ++all;
    if (is_own) own = rows.size();
    if (!batches[i].idle) rows.push_back(batches[i].rows);
  }
  if (static_cast<int>(rows.size()) == all) return dp::loss_share(loss, rows, own);
  if (idle()) return 1;
  return dp::loss_share(loss, rows, own) *
         dp::active_share(loss, static_cast<int>(rows.size()), all,
                          replicas_.join() == nullptr ||
                              replicas_.join()->options().divide_by_initial_world_size);
}

std::vector<ReplicaStep::Batch> ReplicaStep::exchange(const Batch& own) const try {
  return gather_values(members(), own, "the start of a step in all replicas");
} catch (const PeerLostError& error) {
  throw PeerLostError(
      base::concat("rank ", rank_.topology().rank(), ": step ", own.step,
                   " of this replica has none in another: ", error.what(),
                   "; give every replica the same number of batches (smp::DistributedSampler "
                   "does), or let those "
                   "that have fewer go on without (smp::Join), or see that rank's log"));
}

void ReplicaStep::require_same_steps(const std::vector<Batch>& batches) const {
  const auto replicas = members();
  for (std::size_t i = 1; i < batches.size(); ++i) {
    const bool both_run = !batches[i].idle && !batches[0].idle;
    SMP_REQUIRE(batches[i].step == batches[0].step, name_of(replicas, 0), " begins training step ",
                batches[0].step, ", ", name_of(replicas, i), " step ", batches[i].step,
                "; every replica makes the same steps with gradients; evaluate under "
                "torch::NoGradGuard, which needs no other replica");
    SMP_REQUIRE(!both_run || (batches[i].rows < 0) == (batches[0].rows < 0),
                "the batch is split in ",
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

/// Requires the same number of microbatches in replicas that share modules: whoever has more would
/// wait in the modules for ranks that are done.
void ReplicaStep::require_same_counts(const std::vector<Batch>& batches) const {
  const auto ranks = members().members();
  const auto& topology = rank_.topology();
  const auto& own = batches[static_cast<std::size_t>(members().rank())];
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto other = ranks[static_cast<int>(i)];
    const bool shares = topology.coordinates(other.value()).rdp == topology.rdp_rank();
    if (!shares || own.idle || batches[i].idle) continue;
    SMP_REQUIRE(batches[i].microbatches == own.microbatches, "rank ", topology.rank(),
                " cuts its batch of ", own.rows, " rows into ", own.microbatches,
                " microbatches, rank ", other, " its of ", batches[i].rows, " into ",
                batches[i].microbatches,
                ", but they share distributed modules, which work on the microbatches of both; "
                "give both batches of the same shape");
  }
}

/// Requires the same samples with a prescaled batch: collectives of distributed modules would mix
/// different ones up in silence.
void ReplicaStep::require_same_samples(const std::vector<Batch>& batches) const {
  const auto ranks = members().members();
  const auto own = static_cast<std::size_t>(members().rank());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto other = ranks[static_cast<int>(i)];
    if (!rank_.groups().has_batch_of(other) || batches[i].idle || batches[own].idle) continue;
    SMP_REQUIRE(batches[i].samples == batches[own].samples, "rank ", rank_.topology().rank(),
                " and rank ", other, " share distributed modules and, with prescaled_batch, one ",
                "batch, but were given different ones, ", batches[own].samples, " and ",
                batches[i].samples, "; read the samples of smp::data_shard(), which are the same ",
                "on both, or leave prescaled_batch out");
  }
}

/// Ends the step of the gradients: sums that were begun early are given up, and gradients of slices
/// count like any others.
struct ReplicaStep::EndOfStep {
  ~EndOfStep() { gradients.end_step(); }
  ReplicaGradients& gradients;
};

/// Steps without gradients, in which replicas do not meet, may have shortened rows of tables.
void ReplicaStep::begin() const {
  if (!shared_ || !learns_) return;
  auto& writes = replicas_.writes();
  if (writes.any_tables()) {
    writes.agree(gather_values(members(), writes.report(), "rows that max_norm has shortened"));
  }
  replicas_.gradients().begin_step(rank_.shared_steps());
}

void ReplicaStep::finish() const {
  if (!shared_) return;
  const EndOfStep end{replicas_.gradients()};
  const auto replicas = members();
  Ending own;
  if (learns_) {
    own.gradients = replicas_.gradients().report();
    own.shortened = replicas_.writes().report();
  }
  const auto endings = gather_values(replicas, own, "the end of a step in all replicas");
  std::vector<ReplicaGradients::Reports> reports;
  std::vector<ReplicaWrites::Report> shortened;
  for (std::size_t i = 0; i < endings.size(); ++i) {
    if (!endings[i].failure.empty()) {
      replicas_.writes().take_back();
      throw_failure(rank_, replicas, i, " failed in this step", endings[i]);
    }
    reports.push_back(endings[i].gradients);
    shortened.push_back(endings[i].shortened);
  }
  replicas_.writes().keep_shortened();
  if (!learns_) return;
  replicas_.writes().agree(shortened);
  replicas_.gradients().reduce(reports, rank_.shared_steps());
}

void ReplicaStep::fail() const noexcept {
  if (!shared_) return;
  const EndOfStep end{replicas_.gradients()};
  replicas_.writes().take_back();
  try {
    const auto failure = current_failure(rank_);
    gather_values(members(), Ending{failure.text, failure.type, {}, {}},
                  "the end of a step in all replicas");
  } catch (...) {  // they are gone; what ended the step here is thrown
    base::log(base::LogLevel::kInfo, "other replicas were not told of a failed step: ",
              server::text_of(std::current_exception()));
  }
}

}  // namespace smp
