// api/replicas/join.cpp: who still has a batch, and that those who have none idle.
#include "smp/join.h"

#include <algorithm>
#include <map>

#include "api/rank/exchange.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/replicas/replicas.h"
#include "base/check.h"

namespace smp {
namespace {

/// The message of a replica to the others about its round.
struct Round {
  bool has_batch = false;
  int slice_replica = 0;  ///< those of one number share distributed modules
};

/// Requires that ranks which share distributed modules all have a batch, or none: samples of all of
/// them go through such a module at once.
void require_alike_where_shared(const std::vector<Round>& rounds) {
  std::map<int, std::size_t> first;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    const auto other = first.try_emplace(rounds[i].slice_replica, i).first->second;
    const bool same = rounds[i].has_batch == rounds[other].has_batch;
    SMP_REQUIRE(
        same, "smp::Join: replica ", rounds[i].has_batch ? i : other, " has a batch, replica ",
        rounds[i].has_batch ? other : i,
        " has none, but they share distributed modules (tensor_parallel_degree), which work "
        "on the batches of both; give all replicas of such a group the same number of "
        "batches");
  }
}

}  // namespace

Join::Join(JoinOptions options)
    : rank_(Rank::current()),
      replicas_(Replicas::current()),
      options_(options),
      num_active_(rank_.groups().num_replicas()) {
  SMP_REQUIRE(!rank_.in_step(), "rank ", rank_.topology().rank(),
              ": smp::Join in the body of a step; make it before the loop, on every rank");
  SMP_REQUIRE(replicas_.join() == nullptr, "rank ", rank_.topology().rank(),
              ": another smp::Join lives; end it before the next one is made");
  replicas_.set_join(this);
}

Join::~Join() { replicas_.set_join(nullptr); }

bool Join::next(bool has_batch) {
  const PublicCall call("smp::Join::next");
  SMP_REQUIRE(!rank_.in_step(), "rank ", rank_.topology().rank(),
              ": Join::next() in the body of a step; call it between steps, on every rank");
  const auto& topology = rank_.topology();
  active_ = value_of_first(rank_.groups().of(Group::kPp), has_batch);
  const auto rounds = gather_values(rank_.groups().replicas(), Round{active_, topology.rdp_rank()},
                                    "whether another replica has a batch (smp::Join)");
  require_alike_where_shared(rounds);
  num_active_ = static_cast<int>(std::count_if(rounds.begin(), rounds.end(),
                                               [](const Round& round) { return round.has_batch; }));
  const auto first = std::find_if(rounds.begin(), rounds.end(),
                                  [](const Round& round) { return round.has_batch; });
  first_active_ = first == rounds.end() ? 0 : static_cast<int>(first - rounds.begin());
  return num_active_ > 0;
}

}  // namespace smp
