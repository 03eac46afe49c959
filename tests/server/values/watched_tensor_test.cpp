// Guards that only look on: the tensor stays what it is, and every use of it is told.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "server/values/guarded_tensor.h"
#include "support/refusal.h"

namespace smp::server {
namespace watched_tensor_test {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

struct Notes final : TensorGuard {
  void before_use(const at::Tensor&, const std::string& op, bool writes) override {
    SMP_REQUIRE(op != refused, op, " is refused");
    uses.push_back(writes ? op + " writes" : op);
  }
  bool looks_on() const noexcept override { return true; }
  std::vector<std::string> uses;
  std::string refused;
};

class WatchedTensorTest : public testing::Test {
 protected:
  void SetUp() override { watch_uses(table_, notes_); }
  void TearDown() override { unwatch_uses(table_); }

  at::Tensor table_ = at::ones({3, 2}).requires_grad_();
  const c10::DispatchKeySet keys_ = table_.key_set();
  const c10::intrusive_ptr<Notes> notes_ = c10::make_intrusive<Notes>();
};

TEST_F(WatchedTensorTest, TellsWhatUsesItOnceEach) {
  const auto sum = at::linear(at::ones({1, 2}), table_).sum();
  EXPECT_THAT(notes_->uses, ElementsAre("aten::linear"));
  {
    const at::NoGradGuard no_grad;
    table_.mul_(2);
    EXPECT_THAT(notes_->uses, Contains("aten::mul_ writes"));
    EXPECT_TRUE(at::equal(table_, at::full({3, 2}, 2)));
  }
}

TEST_F(WatchedTensorTest, StaysTheLeafThatItIs) {
  torch::autograd::backward({at::linear(at::ones({1, 2}), table_).sum()});
  EXPECT_TRUE(at::equal(table_.grad(), at::ones({3, 2})));
  const auto uses = notes_->uses.size();
  EXPECT_EQ(table_.sizes(), at::IntArrayRef({3, 2}));
  EXPECT_NE(table_.data_ptr<float>(), nullptr);
  EXPECT_TRUE(table_.is_cpu());
  EXPECT_EQ(notes_->uses.size(), uses) << "no operator";
}

TEST_F(WatchedTensorTest, MayRefuse) {
  notes_->refused = "aten::sum";
  EXPECT_EQ(refusal([&] { table_.sum(); }), "aten::sum is refused");
  EXPECT_EQ(table_.mean().item<float>(), 1);
}

TEST_F(WatchedTensorTest, IsWhatItWasOnceNobodyLooksOn) {
  const auto alias = table_.detach();
  notes_->uses.clear();
  unwatch_uses(table_);
  EXPECT_EQ(table_.key_set(), keys_);
  EXPECT_EQ(guard_of(table_), nullptr);
  table_.sum();
  EXPECT_THAT(notes_->uses, IsEmpty());
  alias.sum();
  EXPECT_THAT(notes_->uses, ElementsAre("aten::sum")) << "shallow copies keep the guard";
}

}  // namespace watched_tensor_test
}  // namespace smp::server
