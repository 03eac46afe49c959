// Collectives of tensors, in messages that take random times: results to the bit, dtypes and
// shapes, what becomes of the caller's tensor, and how much is sent.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <vector>

#include "d2d/collectives/communicator.h"
#include "d2d/wire/simulated_job.h"
#include "smp/error.h"

namespace smp::d2d {
namespace communicator_tensors_test {

TEST(CommunicatorTensors, ReducesInOrderOfMembersToTheSameBits) {
  const std::vector<std::vector<std::int64_t>> shapes{{},     {0},    {1},         {7},
                                                      {4, 6}, {1025}, {31, 57, 3}, {2, 0, 3}};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto& group = kGroups[seed % kGroups.size()];
    SimulatedJob job(4, seed);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const Communicator all = own.group(members(group));
      for (const auto& shape : shapes) {
        const at::Tensor reduced = all.all_reduce(contribution(rank, shape));
        EXPECT_TRUE(at::equal(reduced, sum_in_order(group, shape))) << reduced.sizes();
        EXPECT_EQ(reduced.sizes(), at::IntArrayRef(shape));
      }
    });
  }
}

TEST(CommunicatorTensors, ReducesEveryTypeThatCanBeSummed) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                             at::kComplexFloat}) {
      for (const std::int64_t size : {5, 5000}) {
        const at::Tensor reduced = own.all().all_reduce(contribution(rank, {size}, dtype));
        EXPECT_EQ(reduced.scalar_type(), dtype);
        EXPECT_TRUE(at::equal(reduced, sum_in_order({0, 1, 2}, {size}, dtype))) << dtype;
      }
    }
    EXPECT_THROW(own.all().all_reduce(at::ones({2}, at::kBool)), UnsupportedError);
    EXPECT_THROW(own.all().all_reduce(at::Tensor()), UsageError);
  });
}

TEST(CommunicatorTensors, ReduceScatterGivesEachMemberItsPart) {
  for (const auto& group : kGroups) {
    SimulatedJob job(4, 5);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const Communicator all = own.group(members(group));
      for (const std::int64_t width : {3, 700}) {
        const std::vector<std::int64_t> shape{2 * all.size(), width};
        const at::Tensor part = all.reduce_scatter(contribution(rank, shape));
        const at::Tensor expected = sum_in_order(group, shape).narrow(0, 2 * all.rank(), 2);
        EXPECT_TRUE(at::equal(part, expected));
        EXPECT_TRUE(part.is_contiguous());
      }
    });
  }
}

TEST(CommunicatorTensors, GathersTensorsAlongTheFirstDimension) {
  for (const auto& group : kGroups) {
    SimulatedJob job(4, 6);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      for (const std::int64_t width : {1, 3000}) {
        std::vector<at::Tensor> parts;
        for (const int member : group) parts.push_back(contribution(member, {2, width}));
        const at::Tensor joined =
            own.group(members(group)).all_gather(contribution(rank, {2, width}));
        EXPECT_TRUE(at::equal(joined, at::cat(parts)));
      }
    });
  }
}

TEST(CommunicatorTensors, WhatWasSentMayBeChangedOnceTheCallReturns) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SimulatedJob job(3, seed);
    job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
      const auto all = own.all();
      const auto tensor = contribution(rank, {5'000});
      const auto everybodys = all.all_gather(Payload{"", {tensor}}, "a test");
      tensor.fill_(rank);
      for (int other = 0; other < 3; ++other) {
        if (other == rank) continue;
        EXPECT_TRUE(at::equal(everybodys[static_cast<std::size_t>(other)].tensors.at(0),
                              contribution(other, {5'000})));
      }
      const auto mine = contribution(rank, {4'000});
      const auto roots = all.broadcast(Payload{"", {mine}}, GlobalRank(1));
      if (rank == 1) mine.zero_();
      if (rank != 1) {
        EXPECT_TRUE(at::equal(roots.tensors.at(0), contribution(1, {4'000})));
      }
    });
    EXPECT_THAT(job.failures, testing::IsEmpty()) << "seed " << seed;
  }
}

TEST(CommunicatorTensors, ExchangesPartsBetweenAllPairs) {
  for (const auto& group : kGroups) {
    SimulatedJob job(4, 9);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const Communicator all = own.group(members(group));
      for (const std::int64_t width : {1, 900}) {
        const std::vector<std::int64_t> shape{3 * all.size(), width};
        std::vector<at::Tensor> parts;
        for (const int member : group) {
          parts.push_back(contribution(member, shape).narrow(0, 3 * all.rank(), 3));
        }
        const at::Tensor exchanged = all.all_to_all(contribution(rank, shape));
        EXPECT_TRUE(at::equal(exchanged, at::cat(parts)));
        EXPECT_TRUE(exchanged.is_contiguous());
      }
      const auto odd = at::ones({2 * all.size() + 1});
      if (all.size() > 1) {
        EXPECT_THROW(all.all_to_all(odd), UsageError);
      }
    });
  }
}

TEST(CommunicatorTensors, TakesStridedTensorsAndOnesWithHistory) {
  SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int, Communicators& own) {
    const at::Tensor leaf = at::arange(6'000, at::kFloat).reshape({60, 100}).requires_grad_();
    const at::Tensor strided = (leaf * 1).t();
    const at::Tensor reduced = own.all().all_reduce(strided);
    EXPECT_FALSE(reduced.requires_grad());
    EXPECT_TRUE(at::equal(reduced, strided * 2));
    EXPECT_TRUE(at::equal(own.all().reduce_scatter(strided),
                          (strided * 2).narrow(0, 50 * own.all().rank(), 50)));
    EXPECT_TRUE(at::equal(own.all().all_gather(strided), at::cat({strided, strided})));
  });
}

TEST(CommunicatorTensors, GivesNormalTensorsUnderInferenceMode) {
  SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int, Communicators& own) {
    const at::Tensor outside = at::ones({4000});
    const c10::InferenceMode inference;
    for (const at::Tensor& tensor : {outside, at::ones({4000}), at::ones({4})}) {
      EXPECT_FALSE(own.all().all_reduce(tensor).is_inference());
      EXPECT_FALSE(own.all().reduce_scatter(tensor).is_inference());
      EXPECT_FALSE(own.all().all_gather(tensor).is_inference());
    }
  });
}

TEST(CommunicatorTensors, LeavesTheTensorAloneAndLetsItBeChangedAfterwards) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SimulatedJob job(4, seed);
    job.on_ranks({0, 1, 2, 3}, [&](int rank, Communicators& own) {
      const Communicator all = own.all();
      for (const std::int64_t width : {10, 5000}) {
        at::Tensor tensor = contribution(rank, {4, width});
        const at::Tensor before = tensor.clone();
        for (const int collective : {0, 1, 2}) {
          at::Tensor result = collective == 0   ? all.all_reduce(tensor)
                              : collective == 1 ? all.reduce_scatter(tensor)
                                                : all.all_gather(tensor);
          EXPECT_TRUE(at::equal(tensor, before));
          tensor.fill_(-1);
          result.fill_(-2);
          tensor.copy_(before);
        }
      }
    });
    EXPECT_THAT(job.failures, testing::IsEmpty());
  }
}

// ---- numbers of messages ----

struct Sent {
  std::uint64_t frames, tensor_bytes;
  bool operator==(const Sent&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Sent& sent) {
    return out << sent.frames << " frames, " << sent.tensor_bytes << " bytes";
  }
};

// What rank `number` of `size` sends during `collective`.
std::vector<Sent> sent_in(int size, const std::function<void(const Communicator&)>& collective) {
  SimulatedJob job(size);
  std::vector<int> numbers;
  for (int number = 0; number < size; ++number) numbers.push_back(number);
  job.on_ranks(numbers, [&](int, Communicators& own) { collective(own.all()); });
  std::vector<Sent> sent;
  for (const int number : numbers) {
    const ChannelCounters& counters = job.channel(number).counters();
    sent.push_back({counters.frames_sent, counters.tensor_bytes_sent});
  }
  return sent;
}

TEST(CommunicatorTensors, SendsWhatTheFormulasSay) {
  for (const int size : {1, 2, 3, 4, 5}) {
    const auto n = static_cast<std::uint64_t>(size);
    const auto each = [&](const Sent& sent) { return std::vector<Sent>(n, sent); };
    EXPECT_EQ(sent_in(size, [](auto& all) { all.barrier(); }), each({n - 1, 0}));
    EXPECT_EQ(sent_in(size,
                      [](auto& all) {
                        all.all_gather({"x", {at::ones({9})}}, "a test");
                      }),
              each({n - 1, (n - 1) * 36}));
    EXPECT_EQ(sent_in(size,
                      [](auto& all) {
                        all.all_gather(at::ones({2, 3000}));
                      }),
              each({n - 1, (n - 1) * 24'000}));
    std::vector<Sent> broadcast(n, Sent{0, 0});
    broadcast[0] = {n - 1, (n - 1) * 36};
    EXPECT_EQ(sent_in(size,
                      [](auto& all) {
                        all.broadcast({"x", {at::ones({9})}}, GlobalRank(0));
                      }),
              broadcast);
    EXPECT_EQ(sent_in(size, [](auto& all) { all.all_reduce(at::ones({1024})); }),
              each({n - 1, (n - 1) * 4096}))
        << "as one piece";
    const std::uint64_t elements = 60 * 100;
    EXPECT_EQ(sent_in(size,
                      [](auto& all) {
                        all.all_reduce(at::ones({60, 100}));
                      }),
              each({2 * (n - 1), 2 * (n - 1) * elements * 4 / n}));
    EXPECT_EQ(sent_in(size,
                      [](auto& all) {
                        all.reduce_scatter(at::ones({60, 100}));
                      }),
              each({n - 1, (n - 1) * elements * 4 / n}));
    EXPECT_EQ(sent_in(size,
                      [](auto& all) {
                        all.all_to_all(at::ones({60, 100}));
                      }),
              each({n - 1, (n - 1) * elements * 4 / n}));
  }
}

}  // namespace communicator_tensors_test
}  // namespace smp::d2d
