// Parts of rows that are shortened once in a step, and count as they were before it.
#include "api/replicas/shortened_parts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>

namespace smp {
namespace shortened_parts_test {

at::Tensor rows_of(std::initializer_list<std::int64_t> rows) { return at::tensor(rows, at::kLong); }

/// Rows 1, 2, 3, 4, each of two equal elements.
at::Tensor slice() { return at::arange(1, 5, at::kDouble).unsqueeze(1).repeat({1, 2}); }

TEST(ShortenedParts, CountAsTheyWereBeforeTheStep) {
  auto table = slice();
  ShortenedParts parts;
  EXPECT_TRUE(at::equal(parts.before(table, rows_of({1, 3})), slice().index({rows_of({1, 3})})));
  parts.scale(table, rows_of({1}), at::full({1}, 0.5, at::kDouble));
  EXPECT_EQ(table[1][0].item<double>(), 1);
  EXPECT_TRUE(at::equal(parts.before(table, rows_of({0, 1})), slice().slice(0, 0, 2)));
  auto other = slice();
  EXPECT_TRUE(at::equal(parts.before(other.mul_(3), rows_of({1})), slice().slice(0, 1, 2) * 3))
      << "of another table";
}

TEST(ShortenedParts, AreScaledOnceUntilTheStepHasEnded) {
  auto table = slice();
  ShortenedParts parts;
  const auto halves = at::full({2}, 0.5, at::kDouble);
  EXPECT_TRUE(at::equal(parts.scale(table, rows_of({0, 2}), halves), rows_of({0, 2})));
  EXPECT_TRUE(at::equal(parts.scale(table, rows_of({2, 3}), halves), rows_of({3})));
  EXPECT_EQ(parts.scale(table, rows_of({0, 3}), halves).numel(), 0);
  EXPECT_TRUE(at::equal(table.select(1, 1), at::tensor({0.5, 2.0, 1.5, 2.0}, at::kDouble)));
  parts.keep();
  EXPECT_TRUE(at::equal(parts.before(table, rows_of({2})), table.slice(0, 2, 3)));
  parts.scale(table, rows_of({0, 2}), halves);
  EXPECT_TRUE(at::equal(table.select(1, 0), at::tensor({0.25, 2.0, 0.75, 2.0}, at::kDouble)));
}

TEST(ShortenedParts, AreTakenBackIfTheStepFails) {
  auto table = slice();
  ShortenedParts parts;
  const auto half = at::full({1}, 0.5, at::kDouble);
  parts.scale(table, rows_of({1}), half);
  parts.scale(table, rows_of({3}), half);
  parts.take_back();
  EXPECT_TRUE(at::equal(table, slice()));
  parts.scale(table, rows_of({1}), half);
  EXPECT_EQ(table[1][1].item<double>(), 1) << "the next step begins anew";
}

}  // namespace shortened_parts_test
}  // namespace smp
