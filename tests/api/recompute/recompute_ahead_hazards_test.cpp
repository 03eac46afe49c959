// What code could notice if a call of it is computed ahead: variables of a body that are gone,
// random numbers, a lack of memory.
#include <c10/util/Exception.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/chain_model.h"
#include "server/recompute/ahead.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp {
namespace recompute_ahead_hazards_test {

using at::Tensor;
using server::RecomputeAhead;

constexpr int kMicrobatches = 4;
constexpr RecomputeAhead::Credit kNone{.one_call = false},
    kALot{.one_call = true, .bytes = 1 << 30};

Config config_of(const std::string& schedule) {
  Config config;
  config.microbatches = kMicrobatches;
  config.pipeline = schedule;
  config.plan_cache = "off";
  return config;
}

std::int64_t computed_ahead(int ranks) {
  std::int64_t computed = 0;
  for (int rank = 0; rank < ranks; ++rank) computed += RecomputeAhead::of(rank)->computed();
  return computed;
}

// ---- variables of bodies -----------------------------------------------------------------------

/// Microbatches whose bodies run.
std::set<int> bodies;

struct InBody {
  int microbatch = current_microbatch();
  InBody() { bodies.insert(microbatch); }
  ~InBody() { bodies.erase(microbatch); }
};

/// Code that a body has captured by reference does not run once the body has returned or thrown,
/// though its graph lives.
void keep_graphs(const std::string& schedule, std::uint64_t seed, bool throws) {
  int runs = 0;
  run_local(2,
            [&] {
              auto net = make_chain();
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("b", 1);
              model.set_partition("c", 1);
              std::vector<Tensor> kept;
              bool placed = false;
              auto train = smp::step([&](const Tensor& x) {
                if (is_tracing()) return;
                const InBody here;
                const auto y = checkpoint(
                    [&here, &runs](const Tensor& t) {
                      ++runs;
                      EXPECT_TRUE(bodies.contains(here.microbatch)) << "its variables are gone";
                      return t.exp().sin();
                    },
                    model(x));
                if (here.microbatch % 2 == 1) return model.backward(y.sum());
                kept.push_back(y);
                if (throws && placed && here.microbatch == 2)
                  throw std::runtime_error("in the midst");
              });
              const auto x = rows(2 * kMicrobatches);
              train(x);
              placed = true;
              RecomputeAhead::of(rank())->set_credit(kALot);
              for (int i = 0; i < 3; ++i) {
                try {
                  train(x);
                } catch (const std::exception&) {
                  EXPECT_TRUE(throws);
                }
                barrier();
                kept.clear();
              }
            },
            config_of(schedule), {.seed = seed, .random_order = seed % 2 == 0});
  EXPECT_GT(runs, kMicrobatches);
}

TEST(RecomputeAheadHazards, NothingRunsOnceItsBodyHasEnded) {
  const auto before = computed_ahead(2);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    for (const bool throws : {false, true}) keep_graphs("simple", seed, throws);
  }
  EXPECT_GT(computed_ahead(2), before);
}

// ---- random numbers ----------------------------------------------------------------------------

/// Draws in code that asks for other numbers the second time.
struct NoisyImpl : torch::nn::Module {
  Layer layer = register_module("layer", Layer(3, 3));
  Tensor forward(const Tensor& x) {
    const auto noise = [](const Tensor& t) { return t * torch::rand_like(t).exp(); };
    return checkpoint({.preserve_rng_state = false}, noise, layer(x));
  }
};
SMP_MODULE(Noisy);

struct Drawn {
  Tensor next;                      ///< what the program draws after some steps
  std::map<int, Tensor> of_bodies;  ///< what bodies draw after their backwards, by microbatch
  std::map<std::string, Tensor> gradients;
};

Drawn drawn(const std::string& schedule, std::uint64_t seed, const RecomputeAhead::Credit& credit) {
  Drawn all;
  torch::manual_seed(11);
  run_local(2,
            [&] {
              nn::Sequential net{Layer(3, 3), Noisy()};
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("1", 1);
              auto train = smp::step([&](const Tensor& x) {
                if (is_tracing()) return;
                const auto noise = [](const Tensor& t) { return (t * torch::rand_like(t)).exp(); };
                const auto y = checkpoint({.preserve_rng_state = false}, noise, net->forward(x));
                model.backward(y.sum());
                all.of_bodies[current_microbatch()] = torch::rand({4});
              });
              const auto x = rows(2 * kMicrobatches);
              for (int i = 0; i < 3; ++i) {
                train(x);
                RecomputeAhead::of(rank())->set_credit(credit);
              }
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                all.gradients[name] = parameter.grad().clone();
              }
            },
            config_of(schedule), {.seed = seed, .random_order = seed % 2 == 0});
  all.next = torch::rand({4});
  return all;
}

TEST(RecomputeAheadHazards, RandomNumbersDoNotDependOnWhenACallRuns) {
  torch::manual_seed(11);
  const auto next = torch::rand({4});
  for (const char* schedule : {"simple", "interleaved", "1f1b"}) {
    const auto without = drawn(schedule, 1, kNone);
    EXPECT_TRUE(torch::equal(without.next, next)) << "drawn from the program's own generator";
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(testing::Message() << schedule << ", seed " << seed);
      const auto before = computed_ahead(2);
      const auto with = drawn(schedule, seed, kALot);
      EXPECT_GT(computed_ahead(2), before + kMicrobatches);
      EXPECT_TRUE(torch::equal(with.next, next)) << "drawn from the program's own generator";
      for (const auto& [microbatch, value] : without.of_bodies) {
        EXPECT_TRUE(torch::equal(with.of_bodies.at(microbatch), value)) << microbatch;
      }
      for (const auto& [name, value] : without.gradients) {
        EXPECT_TRUE(torch::equal(with.gradients.at(name), value)) << name;
      }
    }
  }
}

// ---- memory ------------------------------------------------------------------------------------

/// The credit of stage 1 of a net that is placed by hand, and the memory that its plan has for it.
RecomputeAhead::Credit credit_of(const Config& config, std::int64_t& limit, std::int64_t& used) {
  RecomputeAhead::Credit credit;
  run_local(2,
            [&] {
              nn::Sequential net{Layer(3, 3), Layer(3, 3)};
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("1", 1);
              auto train = smp::step([&](const Tensor& x) {
                if (!is_tracing()) model.backward(net->forward(x).sum());
              });
              train(rows(2 * kMicrobatches));
              if (rank() != 1) return;
              credit = RecomputeAhead::of(rank())->credit();
              const auto& summary = model.plan().summary();
              limit = summary ? summary->stages.at(1).memory_limit : 0;
              used = summary ? summary->stages.at(1).most_memory() : 0;
            },
            config, {.seed = 1});
  return credit;
}

TEST(RecomputeAheadHazards, CreditIsWhatThePlanLeaves) {
  std::int64_t limit = 0, used = 0;
  auto config = config_of("interleaved");
  auto credit = credit_of(config, limit, used);
  EXPECT_GT(limit, 0) << "of the machine";
  EXPECT_EQ(credit, (RecomputeAhead::Credit{.one_call = false, .bytes = limit - used}));
  config.stage_memory = {0.5};
  credit = credit_of(config, limit, used);
  EXPECT_EQ(limit, std::int64_t{1} << 29);
  EXPECT_EQ(credit, (RecomputeAhead::Credit{.one_call = false, .bytes = limit - used}));
}

/// The second time that the first microbatch runs there is no memory.
struct HungryImpl : torch::nn::Module {
  Layer layer = register_module("layer", Layer(3, 3));
  Tensor forward(const Tensor& x) {
    const bool here = hungry && current_microbatch() == 0;
    if (here && ++runs == 2) TORCH_CHECK_WITH(OutOfMemoryError, false, "no room");
    return layer(x).exp().sin();
  }
  static bool hungry;
  static int runs;
};
bool HungryImpl::hungry = false;
int HungryImpl::runs = 0;
SMP_MODULE(Hungry);

/// Where there is no room for what is ahead, there may be when its backward comes.
TEST(RecomputeAheadHazards, TriesAgainForWhatThereWasNoMemory) {
  std::map<std::string, Tensor> wanted;
  for (const bool hungry : {false, true}) {
    HungryImpl::hungry = false;
    const auto before = computed_ahead(2);
    run_local(2,
              [&] {
                torch::manual_seed(3);
                nn::Sequential net{Layer(3, 3), Hungry()};
                set_activation_checkpointing(*net->ptr(1));
                DistributedModel model(net);
                model.set_partition("", 0);
                model.set_partition("1", 1);
                auto train = smp::step([&](const Tensor& x) {
                  if (!is_tracing()) model.backward(net->forward(x).sum());
                });
                const auto x = rows(2 * kMicrobatches);
                train(x);
                barrier();
                RecomputeAhead::of(rank())->set_credit(kALot);
                if (rank() == 1) {
                  HungryImpl::runs = 0;
                  HungryImpl::hungry = hungry;
                }
                model.zero_grad();
                barrier();
                train(x);
                for (const auto& [name, parameter] : model.local_named_parameters()) {
                  const auto [known, fresh] = wanted.try_emplace(name, parameter.grad().clone());
                  EXPECT_TRUE(fresh || torch::equal(known->second, parameter.grad())) << name;
                }
              },
              config_of("simple"), {.seed = 2, .random_order = false});
    EXPECT_GT(computed_ahead(2), before);
  }
  EXPECT_EQ(HungryImpl::runs, 3);
  HungryImpl::hungry = false;
}

// ---- errors ------------------------------------------------------------------------------------

/// Throws the second time that it runs for the last microbatch, on one rank.
struct SourImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const bool here = rank() == on && current_microbatch() == kMicrobatches - 1;
    if (here && ++runs == 2) throw std::logic_error("not twice");
    return x.exp().sin();
  }
  static int on, runs;
};
int SourImpl::on = -1;
int SourImpl::runs = 0;
SMP_MODULE(Sour);

/// What each rank of two replicas of two stages says if one of the second stages throws.
std::map<int, std::string> said_in_replicas(const RecomputeAhead::Credit& credit, int failing,
                                            std::int64_t& ahead) {
  std::map<int, std::string> said;
  auto config = config_of("simple");
  config.pipeline_parallel_degree = 2;
  SourImpl::on = -1;
  run_local(4,
            [&] {
              nn::Sequential net{Layer(3, 3), Sour(), Layer(3, 3)};
              set_activation_checkpointing(*net->ptr(1));
              DistributedModel model(net);
              model.set_partition("", 0);
              for (const char* path : {"1", "2"}) model.set_partition(path, 1);
              auto train = smp::step([&](const Tensor& x) {
                if (!is_tracing()) model.backward(net->forward(x).sum());
              });
              const auto x = rows(2 * kMicrobatches);
              train(x);
              RecomputeAhead::of(rank())->set_credit(credit);
              barrier();
              if (rank() == 0) {
                SourImpl::on = failing;
                SourImpl::runs = 0;
                ahead = -RecomputeAhead::of(failing)->computed();
              }
              barrier();
              try {
                train(x);
              } catch (const std::exception& error) {
                said[rank()] = error.what();
              }
              barrier();
              if (rank() == 0) {
                ahead += RecomputeAhead::of(failing)->computed();
                SourImpl::on = -1;
              }
              barrier();
              train(x);  // the next one works
            },
            config, {.seed = 4, .random_order = false});
  return said;
}

TEST(RecomputeAheadHazards, ReplicasSayWhatTheyWouldSay) {
  constexpr int failing = 3;  // the second stage of a replica, however ranks are dealt
  std::int64_t ahead = 0;
  const auto ordinary = said_in_replicas(kNone, failing, ahead);
  EXPECT_EQ(ahead, 0);
  EXPECT_EQ(ordinary.size(), 4u);
  EXPECT_THAT(ordinary.at(failing), testing::HasSubstr("not twice"));
  const auto early = said_in_replicas(kALot, failing, ahead);
  EXPECT_GT(ahead, 0);
  EXPECT_EQ(early, ordinary);
}

}  // namespace recompute_ahead_hazards_test
}  // namespace smp
