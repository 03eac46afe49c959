// Copies that are made when one of the two is written.
#include "server/values/clone_on_write.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "d2d/lend/heap_allocator.h"
#include "d2d/lend/loans.h"

namespace smp::server {
namespace clone_on_write_test {

TEST(CloneOnWrite, SharesMemoryUntilOneIsWritten) {
  const auto original = at::arange(6, at::kFloat).view({2, 3}).t();
  const auto clone = clone_on_write(original);
  EXPECT_EQ(clone.const_data_ptr(), original.const_data_ptr());
  EXPECT_EQ(clone.sizes(), original.sizes());
  EXPECT_EQ(clone.strides(), original.strides());
  original.add_(1);
  EXPECT_EQ(clone[2][1].item<float>(), 5);
  EXPECT_EQ(original[2][1].item<float>(), 6);
}

TEST(CloneOnWrite, MayBeWrittenItself) {
  const auto base = at::ones({4});
  const auto view = base.narrow(0, 1, 2);
  const auto version = base._version();
  const auto first = clone_on_write(view), second = clone_on_write(view);
  first.mul_(3);
  base.zero_();
  EXPECT_EQ(first.sum().item<float>(), 6);
  EXPECT_EQ(second.sum().item<float>(), 2);
  EXPECT_EQ(base._version(), version + 1) << "writes to a clone do not count for the original";
}

TEST(CloneOnWrite, HasNoHistory) {
  const auto leaf = at::ones({2}).requires_grad_();
  const auto clone = clone_on_write(leaf * 2);
  EXPECT_FALSE(clone.requires_grad());
  EXPECT_TRUE(clone.is_leaf());
}

/// What its memory says is not what a lazy conjugate is, nor the negative that its imaginary part
/// is.
TEST(CloneOnWrite, CarriesOutConjugationAndNegation) {
  const auto complex = at::complex(at::arange(6, at::kFloat), at::ones({6})).view({2, 3}).t();
  const auto conjugate = complex.conj();
  for (const auto& lazy : {conjugate, at::imag(conjugate), at::real(conjugate)}) {
    const auto clone = clone_on_write(lazy);
    EXPECT_FALSE(clone.is_conj());
    EXPECT_FALSE(clone.is_neg());
    EXPECT_TRUE(at::equal(clone, lazy.resolve_conj().resolve_neg()));
    clone.zero_();
  }
  EXPECT_EQ(at::real(complex).sum().item<float>(), 15);
}

/// Memory that LibTorch did not allocate is copied at once.
TEST(CloneOnWrite, OfMemoryOfSomebodyElse) {
  std::vector<float> values(4, 1);
  const auto clone = clone_on_write(at::from_blob(values.data(), {4}, [](void*) {}));
  values[2] = 9;
  EXPECT_EQ(clone[2].item<float>(), 1);
}

/// Not even of what another rank has lent, which is large.
TEST(CloneOnWrite, CopiesNothingOfABorrowedTensor) {
  constexpr int kFloats = 1 << 16;
  std::vector<std::unique_ptr<d2d::Loans>> loans;
  std::vector<d2d::Loans::Offer> offers;
  for (int rank = 0; rank < 2; ++rank) {
    loans.push_back(d2d::Loans::make(d2d::HeapAllocator::install()));
    offers.push_back(loans.back()->offer());
  }
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(loans[static_cast<std::size_t>(rank)]->connect(GlobalRank(rank),
                                                               d2d::Members::all(2), offers));
  }
  const auto id = loans[0]->lend(at::full({kFloats}, 9, at::kFloat));
  ASSERT_TRUE(id.has_value());
  {
    const auto borrowed = loans[1]->borrow(GlobalRank(0), *id, {kFloats}, at::kFloat);
    const auto clone = clone_on_write(borrowed);
    EXPECT_EQ(clone.const_data_ptr(), borrowed.const_data_ptr());
    clone.add_(1);
    EXPECT_EQ(clone.min().item<float>(), 10);
    EXPECT_EQ(borrowed.min().item<float>(), 9);
  }
  loans[1]->take_back();
  loans[0]->take_back();
  EXPECT_EQ(loans[0]->lent(), 0U);
}

}  // namespace clone_on_write_test
}  // namespace smp::server
