// What is being sent stays what and where it was, whoever writes to the tensor meanwhile.
#include "d2d/channel/departures.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/torch_features.h"
#include "d2d/tensors/copy_on_write.h"
#include "d2d/tensors/tensor_data.h"

namespace smp::d2d {
namespace departures_test {

using testing::HasSubstr;

/// Knows which of its memory is freed.
class WatchedMemory final : public c10::Allocator {
 public:
  at::Tensor tensor(std::int64_t floats) {
    const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
    auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                         this, true);
    return at::empty({0}, at::kFloat).set_(c10::Storage(std::move(storage)), 0, {floats});
  }
  static bool is_freed(const void* data) {
    return std::find(freed_.begin(), freed_.end(), data) != freed_.end();
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = std::malloc(bytes);  // NOLINT: as an allocator does
    return {data, data, &free_later, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_later; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  ~WatchedMemory() override {
    for (void* data : freed_) std::free(data);  // NOLINT
    freed_.clear();
  }

 private:
  static void free_later(void* data) { freed_.push_back(data); }
  static inline std::vector<void*> freed_;
};

class DeparturesTest : public testing::Test {
 protected:
  Token start(const at::Tensor& tensor, c10::intrusive_ptr<c10::StorageImpl> memory) {
    return departures_.start(GlobalRank(1), 0, detached(tensor), std::move(memory), nullptr);
  }
  static c10::intrusive_ptr<c10::StorageImpl> shared(const at::Tensor& tensor) {
    return shared_until_written(*tensor.storage().unsafeGetStorageImpl());
  }
  WatchedMemory memory_;
  at::Tensor tensor_ = memory_.tensor(1000).fill_(5);
  const void* const sent_ = tensor_.const_data_ptr();
  Departures departures_;
};

TEST_F(DeparturesTest, TellOfAChangeWhereWritesReachWhatIsSent) {
  const Token token = start(tensor_, nullptr);
  tensor_.add_(1);
  EXPECT_EQ(tensor_.const_data_ptr(), sent_);
  EXPECT_THAT(departures_.finish(token).value_or(""), HasSubstr("changed in place while"));
}

/// Be it by a pointer to write that is only read through, which no version tells of.
TEST_F(DeparturesTest, KeepMemoryThatItsTensorHasLeft) {
  if (!SMP_STORAGES_CAN_BE_WATCHED) GTEST_SKIP() << "LibTorch cannot share memory until a write";
  for (const bool version_tells : {false, true}) {
    const auto tensor = memory_.tensor(1000).fill_(5);
    const void* const sent = tensor.const_data_ptr();
    auto other = shared(tensor);  // lent, for example
    const Token token = start(tensor, shared(tensor));
    version_tells ? tensor.add_(1) : tensor;
    tensor.mutable_data_ptr();
    EXPECT_NE(tensor.const_data_ptr(), sent);
    other.reset();
    EXPECT_FALSE(WatchedMemory::is_freed(sent));
    EXPECT_EQ(*static_cast<const float*>(sent), 5);
    EXPECT_EQ(departures_.finish(token), std::nullopt);
    EXPECT_TRUE(WatchedMemory::is_freed(sent));
  }
}

/// After that the tensor has its memory to itself again, and keeps it.
TEST_F(DeparturesTest, CostNoCopyAfterwards) {
  EXPECT_EQ(departures_.finish(start(tensor_, shared(tensor_))), std::nullopt);
  tensor_.add_(1);
  EXPECT_EQ(tensor_.const_data_ptr(), sent_);
}

}  // namespace departures_test
}  // namespace smp::d2d
