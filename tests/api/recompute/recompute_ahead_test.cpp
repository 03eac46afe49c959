// A rank that has nothing to do computes again what the next backward will need: with the bits,
// the errors and the memory of one that does not.
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/chain_model.h"
#include "server/recompute/ahead.h"
#include "smp/recompute/activation_checkpointing.h"
#include "support/tensor_bytes.h"

namespace smp {
namespace recompute_ahead_test {

using at::Tensor;
using server::RecomputeAhead;
using testing::HasSubstr;

constexpr int kRanks = 3, kMicrobatches = 6;

/// Draws, normalises, and asks a module of another rank.
struct BlockImpl : torch::nn::Module {
  Layer near = register_module("near", Layer(3, 3));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(3));
  Layer far = register_module("far", Layer(3, 3));
  nn::Dropout drop = register_module("drop", nn::Dropout(0.3));
  BlockImpl() { norm->to(torch::kDouble); }
  Tensor forward(const Tensor& x) { return x + drop(far(norm(near(x)).exp()).sin()); }
};
SMP_MODULE(Block);

/// A marked module in a marked module.
struct PairImpl : torch::nn::Module {
  Block first = register_module("first", Block());
  Block second = register_module("second", Block());
  Tensor forward(const Tensor& x) { return second(first(x)).tanh(); }
};
SMP_MODULE(Pair);

struct NetImpl : torch::nn::Module {
  std::vector<Pair> pairs;
  NetImpl() {
    for (int i = 0; i < kRanks; ++i) {
      pairs.push_back(register_module("pair" + std::to_string(i), Pair()));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& pair : pairs) x = pair(x);
    return x.square().sum();
  }
};
SMP_MODULE(Net);

RecomputeAhead& ahead_of(int rank) { return *RecomputeAhead::of(rank); }

std::int64_t computed_ahead() {
  std::int64_t computed = 0;
  for (int rank = 0; rank < kRanks; ++rank) computed += ahead_of(rank).computed();
  return computed;
}

Config config_of(const std::string& schedule) {
  Config config;
  config.microbatches = kMicrobatches;
  config.pipeline = schedule;
  config.active_microbatches = 4;
  config.plan_cache = "off";
  return config;
}

// ---- bits --------------------------------------------------------------------------------------

enum class Marked { kNothing, kPairs, kAll };

/// Gradients and buffers after some steps, by name and rank.
std::map<std::string, Tensor> trained(const Config& config, std::uint64_t seed, Marked marked,
                                      std::int64_t credit, int steps) {
  std::map<std::string, Tensor> all;
  run_local(kRanks,
            [&] {
              torch::manual_seed(1);
              Net net;
              for (auto& pair : net->pairs) {
                if (marked != Marked::kNothing) set_activation_checkpointing(pair);
                if (marked == Marked::kAll) set_activation_checkpointing(pair->first);
              }
              DistributedModel model(net);
              model.set_partition("", 0);
              for (int i = 0; i < kRanks; ++i) {
                const auto path = "pair" + std::to_string(i);
                model.set_partition(path, i);
                model.set_partition(path + ".second.far", (i + 1) % kRanks);
              }
              auto train = smp::step([&](const Tensor& x) {
                if (!is_tracing()) model.backward(model(x));
              });
              const auto batch = rows(4 * kMicrobatches);
              for (int i = 0; i < steps; ++i) {
                train(batch);
                ahead_of(rank()).set_credit({.one_call = true, .bytes = credit});
              }
              const auto suffix = " on " + std::to_string(rank());
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                all[name + suffix] = parameter.grad().clone();
              }
              for (const auto& [name, value] : model.state_dict(kAllPpRanks)) {
                all["state " + name] = value.clone();
              }
            },
            config, {.seed = seed, .random_order = seed % 2 == 0});
  return all;
}

void expect_same_bits(const std::map<std::string, Tensor>& a,
                      const std::map<std::string, Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) EXPECT_TRUE(torch::equal(value, b.at(name))) << name;
}

TEST(RecomputeAhead, HasTheBitsOfWhatIsHeld) {
  constexpr std::int64_t kALot = 1 << 30;
  for (const char* schedule : {"simple", "interleaved", "1f1b", "zero_bubble"}) {
    SCOPED_TRACE(schedule);
    const auto config = config_of(schedule);
    const auto before = computed_ahead();
    const auto held = trained(config, 1, Marked::kNothing, kALot, 3);
    EXPECT_EQ(computed_ahead(), before);
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const auto marked = seed % 2 == 0 ? Marked::kAll : Marked::kPairs;
      expect_same_bits(held, trained(config, seed, marked, seed < 3 ? 0 : kALot, 3));
    }
    EXPECT_GT(computed_ahead(), before + 3 * kMicrobatches);
  }
}

/// Steps are replayed from some on.
TEST(RecomputeAhead, HasTheBitsInStaticMode) {
  for (const bool fast : {false, true}) {
    auto config = config_of("interleaved");
    config.static_mode = true;
    config.fast_mode = fast;
    const auto held = trained(config, 3, Marked::kNothing, 0, 8);
    const auto before = computed_ahead();
    expect_same_bits(held, trained(config, 3, Marked::kPairs, 0, 8));
    EXPECT_GT(computed_ahead(), before);
  }
}

// ---- errors ------------------------------------------------------------------------------------

/// Throws the second time that it runs, in the microbatch that it is told.
struct FailsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const int microbatch = current_microbatch();
    if (microbatch == fails_in && ++runs_there == 2) throw std::logic_error("not twice");
    return x.exp().sin();
  }
  static int fails_in, runs_there;
};
int FailsImpl::fails_in = -1;
int FailsImpl::runs_there = 0;
SMP_MODULE(Fails);

/// Its backward writes a weight of another module, in the microbatch that it is told.
struct MeddlesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto y = x * 1;
    if (current_microbatch() != meddles_in) return y;
    y.register_hook([](const Tensor&) {
      const torch::NoGradGuard no_grad;
      weight.add_(1);
    });
    return y;
  }
  static int meddles_in;
  static Tensor weight;
};
int MeddlesImpl::meddles_in = -1;
Tensor MeddlesImpl::weight;
SMP_MODULE(Meddles);

/// What a step says on every rank that fails where a call of `microbatch` runs again, and how many
/// it has computed ahead until then.
std::map<int, std::string> failed(bool ahead, bool meddles, int microbatch,
                                  std::int64_t& computed) {
  std::map<int, std::string> said;
  FailsImpl::fails_in = MeddlesImpl::meddles_in = -1;
  run_local(2,
            [&] {
              nn::Sequential net{Layer(3, 3), Fails(), Layer(3, 3), Meddles()};
              set_activation_checkpointing(*net->ptr(1));
              set_activation_checkpointing(*net->ptr(2));
              DistributedModel model(net);
              model.set_partition("", 0);
              for (const char* path : {"1", "2", "3"}) model.set_partition(path, 1);
              auto train = smp::step([&](const Tensor& x) {
                if (is_tracing()) return;
                const auto loss = net->forward(x).sum();
                model.backward(loss);
              });
              train(rows(12));
              ahead_of(rank()).set_credit({.one_call = ahead, .bytes = ahead ? 1 << 20 : 0});
              if (rank() == 1) {
                MeddlesImpl::weight = net->ptr(2)->parameters().front();
                (meddles ? MeddlesImpl::meddles_in : FailsImpl::fails_in) = microbatch;
                FailsImpl::runs_there = 0;
              }
              barrier();
              const auto before = ahead_of(1).computed();
              try {
                train(rows(12));
              } catch (const std::exception& error) {
                said[rank()] = error.what();
              }
              barrier();
              if (rank() == 1) computed = ahead_of(1).computed() - before;
              FailsImpl::fails_in = MeddlesImpl::meddles_in = -1;
              train(rows(12));  // the next one works
              if (rank() == 1) MeddlesImpl::weight.reset();
            },
            config_of("simple"), {.seed = 4, .random_order = false});
  return said;
}

TEST(RecomputeAhead, SaysWhatTheBackwardWould) {
  for (const bool meddles : {false, true}) {
    for (const int microbatch : {0, kMicrobatches - 1}) {
      std::int64_t computed = 0;
      const auto ordinary = failed(false, meddles, microbatch, computed);
      EXPECT_EQ(computed, 0);
      ASSERT_EQ(ordinary.size(), 2u);
      EXPECT_THAT(ordinary.at(1),
                  HasSubstr(meddles ? "was changed between the forward and the " : "not twice"));
      const auto early = failed(true, meddles, microbatch, computed);
      EXPECT_GT(computed, 0);
      EXPECT_EQ(early, ordinary);
    }
  }
}

/// An error of a call whose backward never comes is nobody's.
TEST(RecomputeAhead, KeepsErrorsOfCallsThatNobodyAsks) {
  FailsImpl::fails_in = -1;
  on_ranks(
      2,
      [] {
        nn::Sequential net{Layer(3, 3), Fails()};
        set_activation_checkpointing(*net->ptr(1));
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("1", 1);
        std::vector<Tensor> unasked;
        auto train = smp::step([&](const Tensor& x) {
          if (is_tracing()) return;
          const auto loss = net->forward(x).sum();
          if (current_microbatch() == 0) return unasked.push_back(loss);
          model.backward(loss);
        });
        for (int i = 0; i < 3; ++i) {
          FailsImpl::fails_in = i == 0 ? -1 : 0;
          FailsImpl::runs_there = 0;
          train(rows(12));
        }
      },
      kMicrobatches, 2);
  FailsImpl::fails_in = -1;
}

// ---- memory ------------------------------------------------------------------------------------

constexpr std::int64_t kRows = 64, kWidth = 32, kTanhs = 8;
/// What the tanhs of a call of Heavy save.
constexpr std::int64_t kWhole = kTanhs * kRows * kWidth * 8;

struct HeavyImpl : torch::nn::Module {
  nn::Linear linear = register_module("linear", nn::Linear(kWidth, kWidth));
  HeavyImpl() { to(torch::kDouble); }
  Tensor forward(const Tensor& x) {
    auto h = linear(x);
    for (int i = 0; i < kTanhs; ++i) h = h.tanh();
    return h;
  }
};
SMP_MODULE(Heavy);

struct Use {
  std::int64_t peak = 0;  ///< of all ranks together
  std::int64_t left = 0;
  std::int64_t computed = 0, most_ahead = 0;
};

/// Three heavy modules on rank 0, and little elsewhere. The last step fails if `fails`.
Use used(const RecomputeAhead::Credit& credit, std::uint64_t seed, bool fails) {
  Use use;
  run_local(2,
            [&] {
              nn::Sequential net{Heavy(), Heavy(), Heavy(), Layer(kWidth, 2)};
              for (int i = 0; i < 3; ++i) set_activation_checkpointing(*net->ptr(i));
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("3", 1);
              bool throws = false;
              auto train = smp::step([&](const Tensor& x) {
                if (is_tracing()) return;
                const auto loss = net->forward(x).square().sum();
                const bool last = current_microbatch() == kMicrobatches - 1;
                if (throws && last) throw std::runtime_error("in between");
                model.backward(loss);
              });
              const auto batch = at::ones({kRows * kMicrobatches, kWidth}, at::kDouble);
              train(batch);
              ahead_of(rank()).set_credit(credit);
              train(batch);
              barrier();
              const auto before = ahead_of(0).computed();
              const auto live = support::live_tensor_bytes();
              if (rank() == 0) support::take_peak_tensor_bytes();
              throws = fails;
              try {
                train(batch);
              } catch (const std::exception&) {
              }
              barrier();
              if (rank() != 0) return;
              use.peak = support::take_peak_tensor_bytes() - live;
              use.left = support::live_tensor_bytes() - live;
              use.computed = ahead_of(0).computed() - before;
              use.most_ahead = ahead_of(0).most_bytes();
            },
            config_of("1f1b"), {.seed = seed, .random_order = seed % 2 == 0});
  return use;
}

/// In a process of its own, whose allocator counts.
void check_memory() {
  constexpr int kSeeds = 6;
  support::count_tensor_bytes();
  const auto most_of = [](const RecomputeAhead::Credit& credit) {
    Use most;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const auto use = used(credit, seed, false);
      most.peak = std::max(most.peak, use.peak);
      most.computed += use.computed;
      most.most_ahead = std::max(most.most_ahead, use.most_ahead);
    }
    return most;
  };
  const RecomputeAhead::Credit none{.one_call = false}, one{.one_call = true},
      two{.one_call = false, .bytes = 2 * kWhole + kWhole / 2},
      little{.one_call = false, .bytes = kWhole - 1};
  const auto plain = most_of(none), small = most_of(little), single = most_of(one),
             more = most_of(two);
  for (const auto& use : {plain, small, single, more}) {
    std::fprintf(stderr, "peak %ld, %ld computed ahead, %ld bytes at once\n", long(use.peak),
                 long(use.computed), long(use.most_ahead));
  }
  const bool none_computed = plain.computed == 0 && small.computed == 0;
  const bool all_computed = single.computed >= kSeeds && more.computed > single.computed;
  const bool within = small.peak == plain.peak && single.peak <= plain.peak + kWhole &&
                      more.peak > single.peak && more.peak <= plain.peak + two.bytes &&
                      more.most_ahead > kWhole && more.most_ahead <= two.bytes;
  std::int64_t left = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto ordinary = used(none, seed, true), early = used(two, seed, true);
    left += early.left - ordinary.left;
    if (early.computed == 0) left = 1;
  }
  std::fprintf(stderr, "%ld bytes left\n", long(left));
  std::_Exit(none_computed && all_computed && within && left == 0 ? 0 : 1);
}

TEST(RecomputeAhead, HoldsNoMoreThanItsCredit) {
  EXPECT_EXIT(check_memory(), testing::ExitedWithCode(0), "");
}

}  // namespace recompute_ahead_test
}  // namespace smp
