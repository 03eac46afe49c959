// Tensors by name between ranks: who keeps what is wanted later, and what is compared.
#include "checkpoint/exchange.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "d2d/wire/simulated_job.h"
#include "support/refusal.h"

namespace smp::checkpoints {
namespace exchange_test {

using testing::HasSubstr;

/// Tensors of one element, called "0", "1", …, that have their number plus 10; those of `names`.
Offer offer_of(const std::vector<int>& names, std::vector<int>* reads = nullptr) {
  Offer offer;
  std::vector<at::Tensor> values;
  for (const int name : names) {
    values.push_back(at::full({1}, name + 10, at::kFloat));
    offer.tensors.push_back(TensorInfo::of(std::to_string(name), values.back()));
  }
  offer.read = [values, names, reads](std::size_t i) {
    if (reads != nullptr) reads->push_back(names[i]);
    return values[i];
  };
  return offer;
}

std::vector<int> numbers(int count) {
  std::vector<int> all;
  for (int i = 0; i < count; ++i) all.push_back(i);
  return all;
}

/// Together the ranks keep one copy, each a part, and what is offered may change.
TEST(Exchange, KeepsEachTensorOnceForLater) {
  constexpr int kRanks = 3, kTensors = 9;
  d2d::SimulatedJob job(kRanks);
  std::map<int, std::vector<int>> reads;
  job.on_ranks({0, 1, 2}, [&](int rank, d2d::Communicators& own) {
    auto offer = offer_of(numbers(kTensors), &reads[rank]);
    const auto read = offer.read;
    std::optional<Exchange> exchange(std::in_place, own.all(), std::move(offer), "the test");
    auto later = exchange->kept(std::vector<bool>(kTensors, rank == 2));
    exchange.reset();
    EXPECT_EQ(reads[rank].size(), 3u);
    for (int i = 0; i < kTensors; ++i) read(static_cast<std::size_t>(i)).zero_();
    std::map<std::size_t, float> taken;
    std::vector<bool> wanted(kTensors);
    for (int i = 0; i < kTensors; ++i) wanted[static_cast<std::size_t>(i)] = i % 2 == rank;
    later.deliver(
        wanted, [&](std::size_t i, const at::Tensor& values) { taken[i] = values.item<float>(); });
    for (const auto& [i, value] : taken) {
      EXPECT_EQ(static_cast<int>(i) % 2, rank);
      EXPECT_EQ(value, static_cast<float>(i + 10));
    }
    EXPECT_EQ(taken.size(), rank == 2 ? 0u : rank == 1 ? 4u : 5u);
  });
  std::multiset<int> all;
  for (const auto& [rank, own] : reads) all.insert(own.begin(), own.begin() + 3);
  EXPECT_EQ(all.size(), static_cast<std::size_t>(kTensors));
  for (int i = 0; i < kTensors; ++i) EXPECT_EQ(all.count(i), 1u) << i;
}

TEST(Exchange, KeepsChecksumsOfFiles) {
  d2d::SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int rank, d2d::Communicators& own) {
    for (const bool changed : {false, true}) {
      auto offer = offer_of(rank == 0 ? std::vector<int>{0, 1} : std::vector<int>());
      offer.read_first = true;
      offer.source = "the file";
      const auto read = offer.read;
      const auto later =
          Exchange(own.all(), std::move(offer), "the test").kept(std::vector<bool>(2, true));
      if (rank == 0 && changed) read(1).fill_(7);
      std::vector<float> taken;
      const auto text = refusal([&] {
        Exchange(later).deliver(std::vector<bool>(2, true), [&](std::size_t, const auto& values) {
          taken.push_back(values.template item<float>());
        });
      });
      if (changed) {
        EXPECT_THAT(text, HasSubstr("the file has changed between the load and the placement"));
      } else {
        EXPECT_EQ(text, "accepted");
        EXPECT_EQ(taken, (std::vector<float>{10, 11}));
      }
    }
  });
}

/// What nobody else wants goes where it belongs without a copy, once all that is wanted is checked.
TEST(Exchange, ReadsIntoPlaces) {
  d2d::SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int rank, d2d::Communicators& own) {
    for (const bool damaged : {false, true}) {
      std::vector<std::string> done;
      auto offer = offer_of(rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{2});
      offer.read_first = true;
      const auto read = offer.read;
      offer.read = [&, read](std::size_t i) {
        done.push_back("read " + std::to_string(i));
        return read(i);
      };
      offer.check = [&](std::size_t i) {
        done.push_back("check " + std::to_string(i));
        SMP_REQUIRE(!damaged || rank == 0, "it is damaged");
      };
      offer.read_into = [&, read](std::size_t i, const at::Tensor& target) {
        done.push_back("into " + std::to_string(i));
        target.copy_(read(i));
      };
      std::vector<at::Tensor> places{at::zeros({1}), at::zeros({1}), at::zeros({1})};
      std::map<std::size_t, float> taken;
      const std::vector<bool> wanted{rank == 0, true, rank == 1};
      Exchange exchange(own.all(), std::move(offer), "the test");
      const auto text = refusal([&] {
        exchange.deliver(
            wanted,
            [&](std::size_t i, const at::Tensor& values) { taken[i] = values.item<float>(); },
            [&](std::size_t i) { return places[i]; });
      });
      using Done = std::vector<std::string>;
      if (damaged) {
        EXPECT_THAT(text, HasSubstr("it is damaged"));
        EXPECT_EQ(done, rank == 0 ? (Done{"check 0", "check 1"}) : Done{"check 0"});
        EXPECT_TRUE(taken.empty());
        continue;
      }
      EXPECT_EQ(text, "accepted");
      EXPECT_EQ(done, rank == 0 ? (Done{"check 0", "check 1", "into 0", "read 1"})
                                : (Done{"check 0", "into 0"}));
      EXPECT_EQ(taken, (std::map<std::size_t, float>{{1, 11}}));
      EXPECT_EQ(places[rank == 0 ? 0 : 2].item<float>(), rank == 0 ? 10 : 12);
      EXPECT_EQ(places[1].item<float>(), 0);
    }
  });
}

TEST(Exchange, ComparesAllThatIsGivenForOneTensor) {
  d2d::SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, d2d::Communicators& own) {
    // Tensor 0 from all, 1 from ranks 1 and 2, 2 from rank 2.
    auto offer = offer_of(rank == 0   ? std::vector<int>{0}
                          : rank == 1 ? std::vector<int>{0, 1}
                                      : std::vector<int>{0, 1, 2});
    const auto read = offer.read;
    Exchange exchange(own.all(), std::move(offer), "the test");
    exchange.require_same({{{0}, at::kFloat}, {{1}, at::kFloat}, {{2}, at::kFloat}});
    EXPECT_THAT(
        refusal([&] {
          exchange.require_same({{{0, 2}, at::kFloat}});
        }),
        HasSubstr("under the names 0 and 2, but there are different values for them: element "
                  "[0] is 10 in 0 (rank 0) and 12 in 2 (rank 2)"));
    exchange.require_same({{{0, 2}, at::kBool}});  // both are true
    if (rank == 1) read(1).fill_(-3);
    EXPECT_THAT(
        refusal([&] {
          exchange.require_same({{{0}, at::kFloat}, {{1}, at::kFloat}});
        }),
        HasSubstr("ranks 1 and 2 have different values of \"1\": element [0] is -3 on rank 1 "
                  "and 11 on rank 2"));
    if (rank == 1) read(0).zero_();
    if (rank == 2) read(0).zero_().neg_();
    if (rank == 0) read(0).zero_();
    exchange.require_same({{{0}, at::kFloat}});  // 0 and -0
  });
}

}  // namespace exchange_test
}  // namespace smp::checkpoints
