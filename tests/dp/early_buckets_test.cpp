// Gradients that replicas begin to add up before they know how the step ends: the same bits
// whatever was expected, and nothing is left of what was in vain.
#include "dp/early_buckets.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <functional>
#include <random>

#include "d2d/wire/simulated_job.h"
#include "dp/gradient_reducer.h"
#include "dp/reports_of_all.h"

namespace smp::dp {
namespace early_buckets_test {

constexpr int kReplicas = 3;
constexpr std::uint64_t kFirstLane = 100;

/// Numbers whose sum depends on the order of additions.
at::Tensor gradient_of(int replica, std::uint64_t step, std::size_t parameter,
                       at::IntArrayRef sizes) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  const auto numbers = at::arange(count, at::kDouble) * 0.37 + replica * 13.7 +
                       static_cast<double>(step) * 3.1 + static_cast<double>(parameter);
  return (at::sin(numbers) * at::exp(at::cos(numbers) * 8)).to(at::kFloat).reshape(sizes);
}

const std::vector<std::vector<std::int64_t>> kSizes{{40, 30}, {7}, {1, 500}, {3, 3}, {900}};

std::vector<at::Tensor> make_parameters() {
  std::vector<at::Tensor> parameters;
  for (const auto& sizes : kSizes) parameters.push_back(at::zeros(sizes).requires_grad_());
  return parameters;
}

/// What one replica does in one step.
struct Deeds {
  std::vector<bool> used;          // parameters that get a gradient
  std::vector<std::size_t> order;  // in which they become final
  std::function<void(const std::vector<at::Tensor>&)> before_end;
  bool fails = false;
};

/// None, or of some parameters.
using Owners = std::vector<int>;
const std::vector<Owners> kOwners{{}, {2, 0, -1, 2, 0}, {0, 1, 2, 0, 1}};

/// One rank, whose steps begin early or not.
class Replica {
 public:
  Replica(d2d::Communicators& own, std::int64_t bucket_bytes, bool early, const Owners& owners = {})
      : own_(own),
        early_(early),
        reducer_(own.all(), parameters, bucket_bytes, early ? kFirstLane : 10 * kFirstLane, 0,
                 owners) {}

  /// @return whether all buckets with a gradient were averaged early
  bool step(std::uint64_t number, const Deeds& deeds, std::mt19937_64* delays = nullptr) {
    fiber::Event news;
    if (early_) reducer_.begin_step(number, news);
    for (const auto i : deeds.order) {
      if (!deeds.used[i]) continue;
      auto& gradient = at::Tensor(parameters[i]).mutable_grad();
      const auto given = gradient_of(own_.rank().value(), number, i, kSizes[i]);
      gradient.defined() ? void(gradient.add_(given)) : void(gradient = given);
      reducer_.note_final(i);
      if (delays != nullptr && (*delays)() % 2 == 0) {
        fiber::Scheduler::instance().sleep_for(
            static_cast<base::Nanoseconds>((*delays)() % 1000) * base::kMicrosecond,
            d2d::kForTheTest);
      }
      reducer_.progress();
    }
    if (deeds.before_end) deeds.before_end(parameters);
    bool failed = false;
    for (const auto& end : own_.all().all_gather({deeds.fails ? "failed" : "", {}}, "ends")) {
      failed |= !end.bytes.empty();
    }
    bool all_early = false;
    if (!failed) {
      const auto reports = reports_of_all(own_, reducer_);
      all_early = true;
      for (const auto& report : reports) {
        all_early &= report.early.find('-') == std::string::npos;
      }
      reducer_.reduce(reports, number);
    }
    reducer_.end_step();
    return all_early;
  }

  void zero_grad() {
    for (auto& each : parameters) each.mutable_grad().reset();
  }

  const std::vector<at::Tensor> parameters = make_parameters();

 private:
  d2d::Communicators& own_;
  const bool early_;
  GradientReducer reducer_;
};

void expect_same(const Replica& early, const Replica& late, const std::string& where) {
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    const auto& own = early.parameters[i].grad();
    const auto& expected = late.parameters[i].grad();
    ASSERT_EQ(own.defined(), expected.defined()) << where << ", parameter " << i;
    if (own.defined()) {
      EXPECT_TRUE(at::equal(own, expected)) << where << ", parameter " << i;
    }
  }
}

Deeds all_used() { return {std::vector<bool>(kSizes.size(), true), {4, 3, 2, 1, 0}, {}, false}; }

std::string text_of(const Owners& owners) {
  std::string text;
  for (const int owner : owners) text += ' ' + std::to_string(owner);
  return text.empty() ? "without owners" : "owners" + text;
}

void on_replicas(std::uint64_t seed, const std::function<void(int, d2d::Communicators&)>& main) {
  d2d::SimulatedJob job(kReplicas, seed);
  job.on_ranks({0, 1, 2}, main);
  EXPECT_THAT(job.failures, testing::IsEmpty()) << "seed " << seed;
  job.drain();
  for (int rank = 0; rank < kReplicas; ++rank) {
    EXPECT_EQ(job.rank(rank).open_collectives(), 0u) << "seed " << seed << ", rank " << rank;
  }
}

/// Whether all buckets are averaged early.
enum class Early { kNotAll, kAll, kSome };
using enum Early;

/// Steps as `deeds_of` says, early and late, give the same gradients.
void expect_bits_of_late(const std::function<Deeds(int replica, std::uint64_t step)>& deeds_of,
                         const std::vector<Early>& early, bool accumulate, const Owners& owners) {
  for (const std::int64_t bucket_bytes : {1, 3000, 1 << 20}) {
    for (const std::uint64_t seed : {1, 2, 3}) {
      on_replicas(seed, [&](int rank, d2d::Communicators& own) {
        Replica tested(own, bucket_bytes, true, owners);
        Replica reference(own, bucket_bytes, false, owners);
        for (std::uint64_t step = 1; step <= early.size(); ++step) {
          const auto where = text_of(owners) + ", bucket " + std::to_string(bucket_bytes) +
                             ", seed " + std::to_string(seed) + ", rank " + std::to_string(rank) +
                             ", step " + std::to_string(step);
          if (!accumulate) {
            tested.zero_grad();
            reference.zero_grad();
          }
          std::mt19937_64 delays(10 * seed + static_cast<std::uint64_t>(rank));
          const auto deeds = deeds_of(rank, step);
          const bool all_early = tested.step(step, deeds, &delays);
          if (early[step - 1] != Early::kSome) {
            EXPECT_EQ(all_early, early[step - 1] == Early::kAll) << where;
          }
          reference.step(step, deeds);
          if (!deeds.fails) expect_same(tested, reference, where);
        }
      });
    }
  }
}

void expect_bits_of_late(const std::function<Deeds(int replica, std::uint64_t step)>& deeds_of,
                         const std::vector<Early>& early, bool accumulate = false) {
  for (const auto& owners : kOwners) expect_bits_of_late(deeds_of, early, accumulate, owners);
}

TEST(EarlyBuckets, GiveTheBitsOfLateOnes) {
  expect_bits_of_late([](int, std::uint64_t) { return all_used(); }, {kNotAll, kAll, kAll, kAll});
}

TEST(EarlyBuckets, BeginInAnOrderOfEachReplica) {
  expect_bits_of_late(
      [](int replica, std::uint64_t step) {
        auto deeds = all_used();
        std::mt19937_64 random(7 * step + static_cast<std::uint64_t>(replica));
        std::shuffle(deeds.order.begin(), deeds.order.end(), random);
        return deeds;
      },
      {kNotAll, kAll, kAll});
}

TEST(EarlyBuckets, AddToWhatWasAveragedBefore) {
  expect_bits_of_late([](int, std::uint64_t) { return all_used(); }, {kNotAll, kAll, kAll}, true);
}

// In step 3 replica 1 misses two gradients; in step 5 it has them again, but they are not expected.
TEST(EarlyBuckets, AreGivenUpIfAReplicaLacksAGradient) {
  expect_bits_of_late(
      [](int replica, std::uint64_t step) {
        auto deeds = all_used();
        if (replica == 1 && (step == 3 || step == 4)) deeds.used[0] = deeds.used[3] = false;
        return deeds;
      },
      {kNotAll, kAll, kNotAll, kNotAll, kNotAll, kAll});
}

TEST(EarlyBuckets, DoWithoutWhatNobodyUses) {
  expect_bits_of_late(
      [](int, std::uint64_t step) {
        auto deeds = all_used();
        deeds.used[1] = step == 4;
        return deeds;
      },
      // With a bucket for each, that of the unused one never begins.
      {kNotAll, kSome, kSome, kSome, kNotAll, kSome});
}

TEST(EarlyBuckets, NoticeGradientsThatAreChangedBeforeTheEnd) {
  using Change = std::function<void(const at::Tensor&)>;
  const std::vector<Change> changes{
      [](const at::Tensor& parameter) { parameter.grad().mul_(0.5); },
      [](const at::Tensor& parameter) { parameter.grad().data().mul_(0.5); },
      [](const at::Tensor& parameter) {
        at::Tensor(parameter).mutable_grad() = parameter.grad() * 0.5;
      },
      [](const at::Tensor& parameter) { parameter.grad().set_data(parameter.grad().clone()); },
      [](const at::Tensor& parameter) {
        static_cast<float*>(parameter.grad().data_ptr())[parameter.numel() - 1] += 1;
      },
      [](const at::Tensor& parameter) { at::Tensor(parameter).mutable_grad().reset(); },
  };
  for (std::size_t change = 0; change < changes.size(); ++change) {
    SCOPED_TRACE(change);
    expect_bits_of_late(
        [&](int replica, std::uint64_t step) {
          auto deeds = all_used();
          if (replica == 2 && step == 2) {
            deeds.before_end = [&](const auto& parameters) {
              for (const auto& each : parameters) changes[change](each);
            };
          }
          return deeds;
        },
        // A gradient that is gone is not expected in the step after.
        {kNotAll, kNotAll, change == 5 ? kNotAll : kAll, kAll});
  }
}

TEST(EarlyBuckets, TravelThoughElementsAreNotAdjacent) {
  for (const auto& owners : kOwners) {
    on_replicas(1, [&](int rank, d2d::Communicators& own) {
      Replica tested(own, 1 << 20, true, owners), reference(own, 1 << 20, false, owners);
      const bool here = owners.empty() || owners[0] == rank;
      for (std::uint64_t step = 1; step <= 3; ++step) {
        for (auto* each : {&tested, &reference}) {
          each->zero_grad();
          at::Tensor(each->parameters[0]).mutable_grad() = at::zeros({30, 40}).t();
        }
        EXPECT_EQ(tested.step(step, all_used()), step > 1);
        reference.step(step, all_used());
        if (here) {
          EXPECT_FALSE(tested.parameters[0].grad().is_contiguous());
        }
        expect_same(tested, reference, text_of(owners) + ", rank " + std::to_string(rank));
      }
    });
  }
}

// The sums of replicas that all get them.
TEST(EarlyBuckets, OfOwnersGiveThemTheBitsThatAllWouldGet) {
  for (const auto& owners : kOwners) {
    for (const std::int64_t bucket_bytes : {1, 3000, 1 << 20}) {
      on_replicas(4, [&](int rank, d2d::Communicators& own) {
        Replica tested(own, bucket_bytes, true, owners), reference(own, bucket_bytes, false);
        for (std::uint64_t step = 1; step <= 3; ++step) {
          for (auto* each : {&tested, &reference}) each->zero_grad();
          EXPECT_EQ(tested.step(step, all_used()), step > 1);
          reference.step(step, all_used());
          for (std::size_t i = 0; i < kSizes.size(); ++i) {
            const auto& gradient = tested.parameters[i].grad();
            const bool here = owners.empty() || owners[i] < 0 || owners[i] == rank;
            ASSERT_EQ(gradient.defined(), here) << text_of(owners) << ", parameter " << i;
            if (here) {
              EXPECT_TRUE(at::equal(gradient, reference.parameters[i].grad()));
            }
          }
        }
      });
    }
  }
}

/// Bytes of gradients that each rank sends in the second of two steps.
std::vector<std::uint64_t> bytes_sent(bool early, const Owners& owners) {
  std::vector<std::uint64_t> sent(kReplicas);
  d2d::SimulatedJob job(kReplicas, 1);
  job.on_ranks({0, 1, 2}, [&](int rank, d2d::Communicators& own) {
    Replica replica(own, 3000, early, owners);
    const auto so_far = [&] { return job.channel(rank).counters().tensor_bytes_sent; };
    replica.step(1, all_used());
    replica.zero_grad();
    const auto before = so_far();
    EXPECT_EQ(replica.step(2, all_used()), early);
    sent[static_cast<std::size_t>(rank)] = so_far() - before;
  });
  return sent;
}

TEST(EarlyBuckets, OfOwnersSendNothingBack) {
  const Owners owners{0, 1, 2, 0, 1};
  std::vector<std::uint64_t> not_owned(kReplicas, 0);
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    const auto bytes = at::zeros(kSizes[i]).nbytes();
    all += bytes;
    for (int rank = 0; rank < kReplicas; ++rank) {
      if (owners[i] != rank) not_owned[static_cast<std::size_t>(rank)] += bytes;
    }
  }
  for (const bool early : {true, false}) {
    const auto sent = bytes_sent(early, owners);
    EXPECT_EQ(sent, not_owned) << early;
    EXPECT_EQ(sent[0] + sent[1] + sent[2], (kReplicas - 1) * all) << "(n-1)/n on each, on average";
    const auto without = bytes_sent(early, {});
    EXPECT_EQ(without[0] + without[1] + without[2], 2 * (kReplicas - 1) * all);
  }
}

// What came early of a step that failed has no part in the next one, and `.grad` is left alone.
TEST(EarlyBuckets, LeaveGradientsOfAFailedStepAlone) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto& owners = kOwners[seed % kOwners.size()];
    on_replicas(seed, [&](int rank, d2d::Communicators& own) {
      std::mt19937_64 delays(seed + static_cast<std::uint64_t>(rank));
      Replica tested(own, 3000, true, owners), reference(own, 3000, false, owners);
      tested.step(1, all_used(), &delays);
      tested.zero_grad();
      auto deeds = all_used();
      if (rank == static_cast<int>(seed % 3)) {
        deeds.fails = true;
        deeds.order.resize(seed % 5);
      }
      tested.step(2, deeds, &delays);
      for (const auto i : deeds.order) {
        EXPECT_TRUE(at::equal(tested.parameters[i].grad(), gradient_of(rank, 2, i, kSizes[i])));
      }
      if (seed % 2 == 0) return;  // nothing may be left of what only some have begun
      tested.zero_grad();
      EXPECT_TRUE(tested.step(3, all_used(), &delays));
      reference.step(3, all_used());
      expect_same(tested, reference, "seed " + std::to_string(seed));
    });
  }
}

/// Rounds to bfloat16, and may say that it remembers nothing.
TEST(EarlyBuckets, GoThroughHooksThatRememberNothing) {
  on_replicas(3, [](int rank, d2d::Communicators& own) {
    const auto parameters = make_parameters();
    GradientReducer reducer(own.all(), parameters, 3000, kFirstLane);
    reducer.set_hook(bf16_compress_hook());
    for (std::uint64_t step = 1; step <= 4; ++step) {
      fiber::Event news;
      reducer.begin_step(step, news);
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        at::Tensor(parameters[i]).mutable_grad() = gradient_of(rank, step, i, kSizes[i]);
        reducer.note_final(i);
      }
      EXPECT_EQ(reducer.under_way(), step > 1);
      if (step == 3 && rank == 1) parameters[2].grad().data().fill_(2);
      reducer.reduce(reports_of_all(own, reducer), step);
      reducer.end_step();
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        const auto rounded = [](const at::Tensor& t) { return t.to(at::kBFloat16).to(at::kFloat); };
        auto sum = at::zeros(kSizes[i]);
        for (int replica = 0; replica < kReplicas; ++replica) {
          auto term = gradient_of(replica, step, i, kSizes[i]);
          if (step == 3 && replica == 1 && i == 2) term.fill_(2);
          sum = replica == 0 ? rounded(term) : sum + rounded(term);
        }
        EXPECT_TRUE(at::equal(parameters[i].grad(), rounded(sum / kReplicas)))
            << "step " << step << ", parameter " << i;
      }
    }
  });
}

TEST(EarlyBuckets, AreAddedUpWithoutWaiting) {
  on_replicas(1, [](int, d2d::Communicators& own) {
    const auto parameters = make_parameters();
    const std::vector<std::vector<std::size_t>> buckets{{4, 3}, {2}, {1, 0}};
    const std::vector<int> nobody;
    EarlyBuckets early(own.all(), parameters, nobody, buckets, kFirstLane, 1);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor(parameters[i]).mutable_grad() = at::ones(kSizes[i]);
    }
    fiber::Event news;
    early.begin_step(1, {{4, 3}, {}, {1, 0}}, news, {});
    early.note_final(2);
    early.note_final(4);
    early.note_final(4);
    EXPECT_FALSE(early.under_way());
    EXPECT_EQ(early.report(), "---");
    early.note_final(3);
    EXPECT_TRUE(early.under_way());
    early.progress();  // nothing has come
    EXPECT_EQ(early.report(), "+--");
    const fiber::WaitReason reason{"news", "", -1, -1};
    for (int messages = 0; messages < 2 * (kReplicas - 1); ++messages) {
      fiber::Scheduler::instance().sleep_for(base::kSecond, reason);
      early.progress();
    }
    EXPECT_TRUE(at::equal(parameters[3].grad(), at::ones(kSizes[3]))) << "not written yet";
    early.finish({true, false, false});
    EXPECT_TRUE(at::equal(parameters[3].grad(), at::full(kSizes[3], 3.f)));
    EXPECT_TRUE(at::equal(parameters[0].grad(), at::ones(kSizes[0])));
    early.end_step();
    EXPECT_FALSE(early.under_way());
  });
}

}  // namespace early_buckets_test
}  // namespace smp::dp
