// What a module owns, directly and behind its pointers: a picture of it changes when, and only
// when, the user's own memory does.
#include "trial/state/owned_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace smp::partitioning {
namespace owned_memory_test {

struct Shared {
  double value = 1;
  at::Tensor kept;
};

struct Holder : torch::nn::Module {
  int number = 1;
  std::string text = "a text that is longer than the object itself has room for";
  std::vector<int> list = {1, 2, 3};
  std::map<std::string, at::Tensor> features{{"a", at::ones({2})}, {"b", at::ones({2})}};
  std::unordered_map<int, double> table{{1, 1.0}, {2, 2.0}};
  std::list<int> chain = {1, 2, 3};
  std::set<int> numbers = {1, 2, 3};
  std::deque<double> queue = std::deque<double>(200, 1.0);
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::shared_ptr<Shared> made_apart{new Shared()};
  at::Tensor tensor = at::ones({2});
  std::vector<at::Tensor> tensors = {at::ones({2})};
  at::Generator generator = at::detail::createCPUGenerator();
  torch::nn::Linear child = register_module("child", torch::nn::Linear(2, 2));
  at::Tensor weight = register_parameter("weight", at::ones({2}));
  at::Tensor buffer = register_buffer("buffer", at::ones({2}));
};

/// What was in its memory before shows in room that no member uses: here the address of a storage,
/// and the tensor behind it looks like the counts of a shared object.
struct StaleImpl : torch::nn::Module {
  StaleImpl() { stale = reinterpret_cast<std::uintptr_t>(tensor.storage().unsafeGetStorageImpl()); }
  std::uintptr_t stale;
  at::Tensor tensor = at::ones({2});
};

class OwnedMemoryTest : public testing::Test {
 protected:
  OwnedMemoryTest() {
    owned_.leave_out(*holder_);
    owned_.leave_out(*holder_->child);
  }
  std::vector<char> picture() const { return owned_.picture(whole_module(*holder_)); }

  void expect_seen(const std::string& what, const std::function<void(Holder&)>& change) const {
    const auto before = picture();
    change(*holder_);
    EXPECT_TRUE(picture() != before) << what;
  }
  void expect_unseen(const std::string& what, const std::function<void(Holder&)>& change) const {
    const auto before = picture();
    change(*holder_);
    const auto after = picture();
    const auto [now, then] =
        std::mismatch(after.begin(), after.end(), before.begin(), before.end());
    EXPECT_TRUE(after == before) << what << ", byte " << now - after.begin() << " of "
                                 << before.size() << ", the object's are " << sizeof(Holder);
  }

  std::shared_ptr<Holder> holder_ = std::make_shared<Holder>();
  OwnedMemory owned_;
};

TEST_F(OwnedMemoryTest, TwoLooksAreEqual) {
  ASSERT_GT(picture().size(), sizeof(Holder));
  expect_unseen("nothing", [](Holder&) {});
}

TEST_F(OwnedMemoryTest, WhatAMemberOwnsIsSeen) {
  expect_seen("a number", [](auto& h) { ++h.number; });
  expect_seen("a letter of a text", [](auto& h) { h.text[7] = '!'; });
  expect_seen("an element of a vector", [](auto& h) { h.list[1] = 7; });
  expect_seen("a value in a map", [](auto& h) { h.features["b"] = at::zeros({2}); });
  expect_seen("a value in a hash table", [](auto& h) { h.table[2] = 3; });
  expect_seen("an element of a list", [](auto& h) { h.chain.back() = 7; });
  expect_seen("another element of a set", [](auto& h) {
    h.numbers.erase(2);
    h.numbers.insert(4);
  });
  expect_seen("an element of a deque", [](auto& h) { h.queue[100] = 7; });
  expect_seen("a tensor of a shared object", [](auto& h) { h.shared->kept = at::ones({2}); });
  expect_seen("a shared object", [](auto& h) { h.shared->value = 2; });
  expect_seen("a shared object, made apart", [](auto& h) { h.made_apart->value = 2; });
  expect_seen("another generator", [](auto& h) { h.generator = h.generator.clone(); });
}

TEST_F(OwnedMemoryTest, WhatOthersDoWithItIsNot) {
  std::shared_ptr<Shared> pointer;
  at::Tensor tensor;
  expect_unseen("a copy of a pointer", [&](auto& h) { pointer = h.shared; });
  expect_unseen("a copy of another pointer", [&](auto& h) { pointer = h.made_apart; });
  expect_unseen("a reference to a tensor", [&](auto& h) { tensor = h.tensor; });
  expect_unseen("a tensor in place",
                [](auto& h) { h.tensor.mul_(2); });  // trial/tracer/state_watch.h
  expect_unseen("a tensor read", [&](auto& h) { tensor = h.tensor + h.tensors[0]; });
  expect_unseen("a registered parameter", [](auto& h) {
    const at::NoGradGuard no_grad;
    h.weight.add_(1);
  });
  expect_unseen("a registered buffer", [](auto& h) { h.buffer.add_(1); });
  expect_unseen("a child's mode", [](auto& h) { h.child->eval(); });
  expect_unseen("its own mode", [](auto& h) { h.eval(); });
  expect_unseen("a generator that drew", [](auto& h) { at::rand({2}, h.generator); });
}

/// What a freed object left in memory that is no member yet must not be followed.
TEST_F(OwnedMemoryTest, FormerPointersAreNotFollowed) {
  struct Odd : torch::nn::Module {
    std::uintptr_t former[3] = {};
    std::optional<at::Tensor> none;
  };
  const auto odd = std::make_shared<Odd>();
  auto* memory = new double[32];
  odd->former[0] = odd->former[1] = reinterpret_cast<std::uintptr_t>(memory);
  const auto before = owned_.picture(whole_module(*odd));
  memory[0] = 7;
  EXPECT_EQ(owned_.picture(whole_module(*odd)), before);
  delete[] memory;
  const auto others = std::make_unique<double[]>(32);
  others[5] = 7;
  EXPECT_EQ(owned_.picture(whole_module(*odd)), before);

  const at::Generator generator = at::detail::createCPUGenerator();
  odd->former[2] = reinterpret_cast<std::uintptr_t>(generator.unsafeGetGeneratorImpl());
  const auto with_generator = owned_.picture(whole_module(*odd));
  at::rand({2}, generator);
  EXPECT_EQ(owned_.picture(whole_module(*odd)), with_generator);
}

TEST_F(OwnedMemoryTest, NumbersThatLookLikePointersDoNoHarm) {
  struct Odd : torch::nn::Module {
    std::uint64_t numbers[4] = {16, 1 << 20, 0x7ffffffffff0, ~std::uint64_t{15}};
    const void* code = reinterpret_cast<const void*>(&whole_module);
  };
  const auto odd = std::make_shared<Odd>();
  const auto before = owned_.picture(whole_module(*odd));
  EXPECT_EQ(owned_.picture(whole_module(*odd)), before);
}

TEST_F(OwnedMemoryTest, OverlooksAStorageThatATensorHolds) {
  const auto stale = std::make_shared<StaleImpl>();
  const auto before = owned_.picture(whole_module(*stale));
  const auto alias = stale->tensor.detach();
  EXPECT_EQ(owned_.picture(whole_module(*stale)), before);
}

}  // namespace owned_memory_test
}  // namespace smp::partitioning
