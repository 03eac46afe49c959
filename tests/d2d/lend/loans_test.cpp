// Ranks of one process lend each other tensors; and what becomes of loans in odd ends.
#include "d2d/lend/loans.h"

#include <ATen/core/grad_mode.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "d2d/channel/channel_contract.h"
#include "d2d/channel/frame_decoder.h"
#include "d2d/channel/frame_encoder.h"
#include "d2d/channel/loans_contract.h"
#include "d2d/lend/heap_allocator.h"
#include "d2d/wires/local/local_hub.h"
#include "d2d/wires/local/local_wire.h"

namespace smp::d2d {
namespace loans_test {

std::vector<std::unique_ptr<Loans>> connected_loans(int ranks) {
  std::vector<std::unique_ptr<Loans>> all;
  std::vector<Loans::Offer> offers;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(Loans::make(HeapAllocator::install()));
    offers.push_back(all.back()->offer());
  }
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_TRUE(all[static_cast<std::size_t>(rank)]->connect(GlobalRank(rank), Members::all(ranks),
                                                             offers));
  }
  for (auto& loans : all) loans->stop_offering();
  return all;
}

class LendingCluster : public Cluster {
 public:
  LendingCluster() {
    auto loans = connected_loans(3);
    const auto hub = std::make_shared<LocalHub>(3);
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<WireUse> uses;
      uses.push_back({std::make_unique<LocalWire>(hub, GlobalRank(rank))});
      players_.push_back(std::make_unique<Player>(
          Routes(std::move(uses), std::move(loans[static_cast<std::size_t>(rank)]))));
    }
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(loans_test, ChannelContract, LendingCluster);
INSTANTIATE_TYPED_TEST_SUITE_P(loans_test, LoansContract, LendingCluster);

class LoansOfTwo : public testing::Test {
 protected:
  Loans& lender() { return *loans_[0]; }
  Loans& borrower() { return *loans_[1]; }
  at::Tensor borrow(LoanId id, at::IntArrayRef sizes = {kLentFloats}) {
    return borrower().borrow(GlobalRank(0), id, sizes, at::kFloat);
  }
  std::vector<std::unique_ptr<Loans>> loans_ = connected_loans(2);
};

TEST_F(LoansOfTwo, TheMappingCannotBeWrittenTo) {
  auto tensor = borrow(lender().lend(at::ones({kLentFloats})).value());
  // A sanitizer reports it and exits.
  EXPECT_DEATH(*static_cast<float*>(const_cast<void*>(tensor.const_data_ptr())) = 2, "");
}

TEST_F(LoansOfTwo, BorrowedTensorsOutliveBothRanks) {
  auto tensor = borrow(lender().lend(at::full({kLentFloats}, 9, at::kFloat)).value());
  loans_.clear();
  std::vector<at::Tensor> others;
  for (int i = 0; i < 20; ++i) others.push_back(at::full({kLentFloats}, 1, at::kFloat));
  EXPECT_EQ(tensor.min().item<float>(), 9);
}

/// As a look at what a step would do: it ends in a process of its own, which has all of its
/// parent's tensors.
TEST_F(LoansOfTwo, AForkedChildGivesNothingBackAndWritesNowhereElse) {
  auto own = at::full({kLentFloats}, 4, at::kFloat);
  auto tensor = borrow(lender().lend(at::full({kLentFloats}, 9, at::kFloat)).value());
  const auto child = ::fork();
  if (child == 0) {
    own.fill_(5);
    auto other = at::full({kLentFloats}, 6, at::kFloat);
    const bool right = tensor.min().item<float>() == 9 && own.max().item<float>() == 5 &&
                       other.min().item<float>() == 6;
    tensor.reset();
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  lender().take_back();
  EXPECT_EQ(lender().lent(), 1u);
  EXPECT_EQ(own.max().item<float>(), 4);
  EXPECT_EQ(tensor.min().item<float>(), 9);
}

TEST_F(LoansOfTwo, ALoanEndsWhenTheBorrowerWrites) {
  auto tensor = borrow(lender().lend(at::full({kLentFloats}, 9, at::kFloat)).value());
  tensor.add_(1);
  borrower().take_back();
  lender().take_back();
  EXPECT_EQ(lender().lent(), 0u);
  EXPECT_EQ(tensor.min().item<float>(), 10);
}

TEST_F(LoansOfTwo, ALoanEndsWithTheLastOfItsStorages) {
  auto tensor = borrow(lender().lend(at::full({kLentFloats}, 9, at::kFloat)).value());
  auto twin = Loans::twin(*tensor.storage().unsafeGetStorageImpl());
  ASSERT_TRUE(twin);
  auto other = at::empty({0}, at::kFloat);
  other.set_(c10::Storage(std::move(twin)), 0, {kLentFloats}, {1});
  EXPECT_EQ(other.const_data_ptr(), tensor.const_data_ptr());
  EXPECT_TRUE(Loans::is_borrowed(other));
  other.add_(1);
  EXPECT_EQ(other.min().item<float>(), 10);
  EXPECT_EQ(tensor.min().item<float>(), 9);
  EXPECT_FALSE(Loans::twin(*other.storage().unsafeGetStorageImpl())) << "it has its own memory";
  borrower().take_back();
  lender().take_back();
  EXPECT_EQ(lender().lent(), 1u);
  tensor.reset();
  lender().take_back();
  EXPECT_EQ(lender().lent(), 0u);
}

/// An operator may have taken a pointer to read before it took the one to write.
TEST_F(LoansOfTwo, WhoWritesMayGoOnReadingUntilHePolls) {
  auto tensor = borrow(lender().lend(at::full({kLentFloats}, 9, at::kFloat)).value());
  const auto* const before = tensor.const_data_ptr<float>();
  tensor.add_(1);
  lender().take_back();
  EXPECT_EQ(lender().lent(), 1u);
  const auto next = at::full({kLentFloats}, 3, at::kFloat);
  EXPECT_EQ(before[kLentFloats - 1], 9);
  borrower().take_back();
  lender().take_back();
  EXPECT_EQ(lender().lent(), 0u);
}

TEST_F(LoansOfTwo, WhoWritesAfterHisSessionGivesBackAtOnce) {
  auto tensor = borrow(lender().lend(at::full({kLentFloats}, 9, at::kFloat)).value());
  loans_[1].reset();
  tensor.add_(1);
  lender().take_back();
  EXPECT_EQ(lender().lent(), 0u);
}

TEST_F(LoansOfTwo, ABorrowedTensorCanBeLentOnOnlyOnceItIsOnesOwn) {
  auto tensor = borrow(lender().lend(at::full({kLentFloats}, 9, at::kFloat)).value());
  EXPECT_FALSE(borrower().lend(tensor));
  EXPECT_THROW(at::_lazy_clone(tensor), c10::Error);
  tensor.add_(1);
  const auto id = borrower().lend(tensor);
  ASSERT_TRUE(id);
  auto back = lender().borrow(GlobalRank(1), *id, {kLentFloats}, at::kFloat);
  EXPECT_EQ(back.min().item<float>(), 10);
  auto resized = borrow(lender().lend(at::full({kLentFloats}, 9, at::kFloat)).value());
  resized.resize_({2 * kLentFloats});
  EXPECT_FALSE(borrower().lend(resized)) << "it still copies before it is written to";
}

/// Networks cannot register memory that may only be read (RDMA).
TEST_F(LoansOfTwo, ABorrowedTensorGoesOnAsACopy) {
  const auto tensor = borrow(lender().lend(at::full({kLentFloats}, 9, at::kFloat)).value());
  EXPECT_TRUE(Loans::is_borrowed(tensor));
  TransferId next = 1;
  ByteBuffer control;
  std::vector<DataTensor> data;
  encode_frame({Port::kServer, {}, {}, tensor}, {0, kNoWire, kNoWire}, next, control, data);
  ASSERT_EQ(data.size(), 1u);
  EXPECT_FALSE(Loans::is_borrowed(data[0].tensor));
  EXPECT_TRUE(at::equal(data[0].tensor, tensor));
  FrameLoans lent(&borrower());
  encode_frame({Port::kServer, {}, {}, tensor}, {0, kNoWire, kNoWire}, next, control, data, lent);
  EXPECT_TRUE(data.empty()) << "a copy can be lent";
  EXPECT_EQ(borrower().lent(), 1u);
  EXPECT_FALSE(Loans::is_borrowed(at::ones({kLentFloats})));
}

TEST_F(LoansOfTwo, WhatTheLenderCannotHaveLentIsAnError) {
  const auto id = lender().lend(at::ones({kLentFloats})).value();
  EXPECT_THROW(borrow(id | 0xffff), InternalError);
  EXPECT_THROW(borrow(id | LoanId{0xffff} << 48), InternalError);
  EXPECT_THROW(borrow(id, {std::int64_t{1} << 40}), InternalError);
  EXPECT_THROW(borrower().borrow(GlobalRank(1), id, {kLentFloats}, at::kFloat), InternalError);
  EXPECT_THROW(borrower().borrow(GlobalRank(2), id, {kLentFloats}, at::kFloat), InternalError);
}

TEST_F(LoansOfTwo, WhatAFrameLentIsWithdrawnIfItCannotBeSent) {
  DataWires wires;
  wires.fill(0);
  const auto whole = at::ones({kLentFloats});
  const auto too_large = at::ones({1}).expand({std::int64_t{1} << 61});
  TransferId transfer = 0;
  ByteBuffer control;
  std::vector<DataTensor> data;
  const auto encode = [&](at::TensorList tensors, bool is_sent) {
    FrameLoans lent(&lender());
    encode_frame({Port::kServer, {}, {}, tensors}, wires, transfer, control, data, lent);
    if (is_sent) lent.keep();
  };
  EXPECT_THROW(encode({whole, too_large}, true), c10::Error);
  EXPECT_EQ(lender().lent(), 0U);
  encode({whole}, false);
  EXPECT_EQ(lender().lent(), 0U);
  encode({whole}, true);
  EXPECT_EQ(lender().lent(), 1U);
}

TEST_F(LoansOfTwo, ResizingABorrowedTensorCopiesIt) {
  auto tensor = borrow(lender().lend(at::full({kLentFloats}, 9, at::kFloat)).value());
  tensor.resize_({2 * kLentFloats});
  tensor.fill_(3);
  EXPECT_EQ(tensor.sum(at::kDouble).item<double>(), 6.0 * kLentFloats);
}

/// Also by a program that only reads, but asks for a pointer to write through.
TEST_F(LoansOfTwo, ThreadsMayWriteAtOnce) {
  constexpr int kMany = 2 << 20;  // a copy takes longer than threads are apart
  for (int round = 0; round < 10; ++round) {
    auto own = at::full({kMany}, 9, at::kFloat);
    auto tensor = borrow(lender().lend(own).value(), {kMany});
    std::atomic<int> ready{0};
    std::array<double, 4> sums{};
    std::array<const float*, 4> places{};
    const auto read = [&](const at::Tensor& of, std::size_t thread) {
      for (++ready; ready < 4;) std::this_thread::yield();
      places[thread] = of.data_ptr<float>();
      for (int i = 0; i < kMany; ++i) sums[thread] += places[thread][i];
    };
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] { read(i % 2 == 0 ? own : tensor, i); });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_THAT(sums, testing::Each(9.0 * kMany));
    EXPECT_EQ(places[0], places[2]) << "one copy, or none";
    EXPECT_EQ(places[1], places[3]);
    borrower().take_back();
    lender().take_back();
    EXPECT_EQ(lender().lent(), 0u);
  }
}

TEST_F(LoansOfTwo, WhatWasLentMayBeResizedAndWritten) {
  auto tensor = at::full({kLentFloats}, 9, at::kFloat);
  const auto borrowed = borrow(lender().lend(tensor).value());
  tensor.resize_({3 * kLentFloats});
  tensor.fill_(3);
  EXPECT_EQ(tensor.sum(at::kDouble).item<double>(), 9.0 * kLentFloats);
  EXPECT_EQ(borrowed.min().item<float>(), 9);
  EXPECT_TRUE(lender().lend(tensor)) << "as if it were new";
}

TEST_F(LoansOfTwo, AParameterMayBeLentAndStepped) {
  auto parameter = at::full({kLentFloats}, 2, at::kFloat).requires_grad_();
  for (int step = 0; step < 3; ++step) {
    auto tensor = borrow(lender().lend(parameter).value());
    {
      at::NoGradGuard no_grad;
      parameter.add_(1);
    }
    EXPECT_EQ(tensor.min().item<float>(), 2 + step);
    EXPECT_EQ(parameter.min().item<float>(), 3 + step);
  }
  lender().take_back();
  EXPECT_EQ(lender().lent(), 0u);
}

TEST(Loans, ARankWithoutMemoryToLendKeepsOthersFromIt) {
  auto one = Loans::make(HeapAllocator::install());
  EXPECT_FALSE(one->connect(GlobalRank(0), Members::all(2), {one->offer(), {}}));
  EXPECT_EQ(Loans::make(nullptr), nullptr);
}

}  // namespace loans_test
}  // namespace smp::d2d
