// Storages that share memory until one is written to, on whatever thread and wherever that happens.
#include "d2d/tensors/copy_on_write.h"

#include <ATen/ATen.h>
#include <c10/core/impl/COW.h>
#include <c10/util/ParallelGuard.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/torch_features.h"

namespace smp::d2d {
namespace copy_on_write_test {

bool shares_memory(const c10::StorageImpl& storage) {
  return c10::impl::cow::is_cow_data_ptr(storage.data_ptr());
}

class CopyOnWriteTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!SMP_STORAGES_CAN_BE_WATCHED) GTEST_SKIP() << "LibTorch cannot share memory until a write";
  }
  at::Tensor tensor_ = at::ones({1000});
  const void* const shared_ = tensor_.const_data_ptr();
  c10::intrusive_ptr<c10::StorageImpl> twin_ =
      shared_until_written(*tensor_.storage().unsafeGetStorageImpl());
};

TEST_F(CopyOnWriteTest, TheFirstWriteCopies) {
  ASSERT_TRUE(twin_);
  EXPECT_TRUE(shares_memory(*twin_));
  EXPECT_EQ(twin_->data(), shared_);
  tensor_.add_(1);
  EXPECT_NE(tensor_.const_data_ptr(), shared_);
  EXPECT_EQ(twin_->data(), shared_);
  EXPECT_EQ(*static_cast<const float*>(twin_->data()), 1);
}

TEST_F(CopyOnWriteTest, TheLastOneHasTheMemory) {
  twin_.reset();
  tensor_.add_(1);
  EXPECT_EQ(tensor_.const_data_ptr(), shared_);
  EXPECT_FALSE(shares_memory(*tensor_.storage().unsafeGetStorageImpl()));
}

TEST_F(CopyOnWriteTest, ThreadsMayWriteAtOnce) {
  std::vector<std::thread> writers;
  std::vector<void*> got(8);
  for (auto& own : got) writers.emplace_back([&] { own = tensor_.mutable_data_ptr(); });
  for (auto& writer : writers) writer.join();
  EXPECT_NE(got[0], shared_);
  for (const void* own : got) EXPECT_EQ(own, got[0]);
}

/// Code of users often takes pointers there, and LibTorch's own copy-on-write ends the program.
TEST_F(CopyOnWriteTest, APointerToWriteMayBeTakenInAParallelLoop) {
  const c10::ParallelGuard in_a_loop(true);
  const auto* const own = tensor_.mutable_data_ptr<float>();
  EXPECT_NE(own, shared_);
  EXPECT_EQ(own[999], 1);
  EXPECT_TRUE(c10::ParallelGuard::is_enabled());
}

}  // namespace copy_on_write_test
}  // namespace smp::d2d
