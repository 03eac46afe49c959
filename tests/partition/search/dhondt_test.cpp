// Seats against the textbook's way of finding them: the largest of all quotients.
#include "partition/search/dhondt.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <algorithm>
#include <tuple>

namespace smp::partitioning {
namespace {

using testing::ElementsAre;

constexpr int kNoLimit = 1'000'000;

std::vector<Claim> claims_of(const std::vector<double>& costs) {
  std::vector<Claim> claims;
  for (const double cost : costs) claims.push_back({cost, kNoLimit});
  return claims;
}

std::vector<int> counts(const std::vector<int>& owners, std::size_t claims) {
  std::vector<int> result(claims, 0);
  for (const int owner : owners) ++result[owner];
  return result;
}

std::vector<int> seats_of(const std::vector<double>& costs, int seats) {
  return counts(deal_seats(claims_of(costs), std::vector<double>(seats, 1.0), SeatTies::kFirst),
                costs.size());
}

// Writes down cost / 1, cost / 2, ... for everyone, and takes the largest entries of the table.
std::vector<int> textbook(const std::vector<double>& costs, int seats) {
  std::vector<std::tuple<double, int, int>> table;  // (-quotient, claim, divisor)
  for (std::size_t i = 0; i < costs.size(); ++i) {
    for (int divisor = 1; divisor <= seats; ++divisor) {
      table.emplace_back(-costs[i] / divisor, static_cast<int>(i), divisor);
    }
  }
  std::sort(table.begin(), table.end());
  std::vector<int> result(costs.size(), 0);
  for (int s = 0; s < seats; ++s) ++result[std::get<1>(table[s])];
  return result;
}

// Algorithm 3 as printed: one divisor for all.
std::vector<int> as_printed(std::vector<double> costs, int seats) {
  std::vector<int> result(costs.size(), 0);
  for (int s = 1; s <= seats; ++s) {
    const auto k = std::max_element(costs.begin(), costs.end()) - costs.begin();
    ++result[k];
    costs[k] /= s + 1;
  }
  return result;
}

TEST(DHondt, GivesTheSeatsOfTheTextbookExample) {
  EXPECT_THAT(seats_of({100'000, 80'000, 30'000, 20'000}, 8), ElementsAre(4, 3, 1, 0));
}

TEST(DHondt, DiffersFromThePrintedAlgorithm) {
  EXPECT_THAT(as_printed({0.9, 0.1}, 8), ElementsAre(5, 3));
  EXPECT_THAT(seats_of({0.9, 0.1}, 8), ElementsAre(8, 0));
}

TEST(DHondt, DealsTheFirstSeatToTheLargest) {
  EXPECT_THAT(deal_seats(claims_of({1, 3}), {1, 1, 1}), ElementsAre(1, 1, 0));
}

TEST(DHondt, StopsAtWhatAClaimCanUse) {
  EXPECT_THAT(deal_seats({{9, 1}, {1, 2}, {0, 0}}, {1, 1, 1, 1}), ElementsAre(0, 1, 1, -1));
}

TEST(DHondt, CountsALargeSeatForMore) {
  EXPECT_THAT(deal_seats(claims_of({3, 2}), {2, 1, 1}), ElementsAre(0, 1, 0));
}

TEST(DHondt, EqualsTheTextbook) {
  const bool holds = rc::check([] {
    std::vector<double> costs;
    for (int i = *rc::gen::inRange(1, 8); i > 0; --i) costs.push_back(*rc::gen::inRange(1, 1000));
    const int seats = *rc::gen::inRange(1, 40);
    RC_ASSERT(seats_of(costs, seats) == textbook(costs, seats));
  });
  EXPECT_TRUE(holds);
}

// Nobody who has a seat has more of it per cost than the next seat would give to anyone: this is
// what the paper's footnote states.
TEST(DHondt, KeepsTheLargestRatioOfSeatsToCostLeast) {
  const bool holds = rc::check([] {
    std::vector<double> costs;
    for (int i = *rc::gen::inRange(2, 6); i > 0; --i) costs.push_back(*rc::gen::inRange(1, 1000));
    const auto result = seats_of(costs, *rc::gen::inRange(1, 30));
    double largest = 0;
    for (std::size_t i = 0; i < costs.size(); ++i)
      largest = std::max(largest, result[i] / costs[i]);
    for (std::size_t i = 0; i < costs.size(); ++i) {
      RC_ASSERT((result[i] + 1) / costs[i] >= largest);
    }
  });
  EXPECT_TRUE(holds);
}

TEST(DHondt, GivesATiedSeatToWhoHasFewer) {
  // 2 / 2 is 1 / 1.
  EXPECT_THAT(deal_seats(claims_of({2, 1, 1}), {1, 1, 1, 1}), ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(deal_seats(claims_of({2, 1, 1}), {1, 1, 1, 1}, SeatTies::kFirst),
              ElementsAre(0, 0, 1, 2));
  // As sums in floating point have them.
  EXPECT_THAT(deal_seats(claims_of({0.1 + 0.2, 0.15}), {1, 1}), ElementsAre(0, 1));
}

}  // namespace
}  // namespace smp::partitioning
