// smp::nn::Sequential: like torch's, with nesting, default arguments and one request for a run of
// neighbours on one rank.
#include "smp/nn/sequential.h"

#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <sstream>

#include "module/fake_handler.h"
#include "module/routed_models.h"
#include "smp/error.h"
#include "smp/nn/container.h"

namespace smp::test {
namespace {

struct SplitImpl : torch::nn::Module {
  std::pair<Tensor, int> forward(const Tensor& x, int n) { return {x, n}; }
};
SMP_MODULE(Split);
struct JoinImpl : torch::nn::Module {
  Tensor forward(std::pair<Tensor, int> value) { return value.first * value.second; }
};
SMP_MODULE(Join);
struct PlainScaleImpl : ScaleImpl {
  using ScaleImpl::ScaleImpl;
};
TORCH_MODULE(PlainScale);

/// Weights 1 + shift, 2 + shift, ... at "0", "1", ...
nn::Sequential scales(int count, double shift = 0) {
  nn::Sequential all;
  for (int i = 1; i <= count; ++i) all->push_back(Scale(i + shift));
  return all;
}

struct Asked {
  std::string path;
  int owner;
  bool operator==(const Asked&) const = default;
};
std::vector<Asked> asked(const FakeHandler& handler) {
  std::vector<Asked> all;
  for (const auto& request : handler.requests) all.push_back({request.path, request.owner});
  return all;
}

TEST(Sequential, WorksLikeTorchs) {
  nn::Sequential all(Scale(2), PlainScale(3), nn::Functional([](Tensor x) { return x + 1; }));
  EXPECT_TRUE(is_filled(all->forward(kOnes), 7));
  EXPECT_TRUE(is_filled(all(kOnes), 7));
  EXPECT_EQ(all->size(), 3u);
  EXPECT_EQ(all->at<ScaleImpl>(0).weight[0].item<double>(), 2);
  EXPECT_EQ(all->ptr<PlainScaleImpl>(1)->weight[0].item<double>(), 3);
  EXPECT_EQ(all->named_parameters().keys(), (std::vector<std::string>{"0.weight", "1.weight"}));
  std::ostringstream text;
  text << nn::Sequential(Scale(2));
  EXPECT_EQ(text.str(), "smp::nn::Sequential(\n  (0): smp::test::ScaleImpl\n)");
}

TEST(Sequential, TakesNamedModules) {
  nn::Sequential all({{"first", Scale(2)}, {"second", std::make_shared<ScaleImpl>(3)}});
  EXPECT_TRUE(is_filled(all->forward(kOnes), 6));
  EXPECT_EQ(all->named_children().keys(), (std::vector<std::string>{"first", "second"}));
  torch::OrderedDict<std::string, nn::AnyModule> named;
  named.insert("a", nn::AnyModule(Scale(4)));
  EXPECT_EQ(nn::Sequential(std::move(named))->named_children().keys()[0], "a");
}

TEST(Sequential, PassesValuesOfAnyTypeAndDefaultArguments) {
  nn::Sequential all{Split(), Join(), Defaults(1)};
  EXPECT_TRUE(is_filled(all->forward(kOnes, 3), 30));
  nn::Sequential front{Split()};
  const auto pair = front->forward<std::pair<Tensor, int>>(kOnes, 3);
  EXPECT_EQ(pair.second, 3);
}

TEST(Sequential, NamesTypesThatDoNotFit) {
  nn::Sequential all{Split(), Join()};
  EXPECT_THROW(all->forward(kOnes, 3.0), UsageError);
  EXPECT_THROW(all->forward(kOnes), UsageError);
  EXPECT_THROW(all->forward<int>(kOnes, 3), UsageError);
  EXPECT_THROW(nn::Sequential()->forward(kOnes), UsageError);
}

TEST(Sequential, ClonesSavesAndLoads) {
  nn::Sequential all(Scale(2), nn::Sequential(Scale(3)));
  const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(all->clone());
  torch::NoGradGuard no_grad;
  all->at<ScaleImpl>(0).weight.fill_(10);
  EXPECT_TRUE(is_filled(copy->forward(kOnes), 6));
  std::stringstream file;
  torch::save(all, file);
  nn::Sequential other{Scale(), nn::Sequential{Scale()}};
  torch::load(other, file);
  EXPECT_TRUE(is_filled(other->forward(kOnes), 30));
  all->smp_place.owner = PpRank(0);
  EXPECT_NO_THROW(all->clone());
  all->at<ScaleImpl>(0)
      .weight.unsafeGetTensorImpl()
      ->release_storage_and_set_meta_custom_data_ptr_error_msg_({});
  EXPECT_THROW(all->clone(), UnsupportedError);
  EXPECT_THROW(torch::save(all, file), UnsupportedError);
  EXPECT_THROW(all->to(torch::kDouble), UnsupportedError);
}

TEST(Sequential, SendsOneRequestForARunOfNeighbours) {
  auto here = scales(6);
  auto there = scales(6, 10);
  FakeHandler handler({here.ptr(), there.ptr()}, {{"1", 1}, {"2", 1}, {"3", 1}, {"5", 1}});
  EXPECT_TRUE(is_filled(here->forward(kOnes), 1.0 * 12 * 13 * 14 * 5 * 16));
  EXPECT_EQ(asked(handler), (std::vector<Asked>{{"", 1}, {"5", 1}}));
  EXPECT_EQ(handler.entered, (std::vector<std::string>{"", "0", "1", "2", "3", "4"}));
}

TEST(Sequential, EndsARunWhereTheOwnerChanges) {
  auto first = scales(4);
  auto second = scales(4, 10);
  auto third = scales(4, 20);
  FakeHandler handler({first.ptr(), second.ptr(), third.ptr()},
                      {{"0", 1}, {"1", 1}, {"2", 2}, {"3", 2}});
  EXPECT_TRUE(is_filled(first->forward(kOnes), 11.0 * 12 * 23 * 24));
  EXPECT_EQ(asked(handler), (std::vector<Asked>{{"", 1}, {"", 2}}));
}

TEST(Sequential, RunsOnItsOwner) {
  auto here = scales(3);
  auto there = scales(3, 10);
  FakeHandler handler({here.ptr(), there.ptr()}, {{"", 1}, {"1", 1}, {"2", 1}});
  EXPECT_TRUE(is_filled(here->forward(kOnes), 1.0 * 12 * 13));
  EXPECT_EQ(asked(handler), (std::vector<Asked>{{"", 1}, {"0", 0}}));
}

TEST(Sequential, StopsARunAtModulesThatCannotCross) {
  nn::Sequential here(Scale(1), PlainScale(2), Scale(3));
  nn::Sequential there(Scale(11), PlainScale(12), Scale(13));
  FakeHandler handler({here.ptr(), there.ptr()}, {{"0", 1}, {"2", 1}});
  EXPECT_TRUE(is_filled(here->forward(kOnes), 11.0 * 2 * 13));
  EXPECT_EQ(asked(handler), (std::vector<Asked>{{"0", 1}, {"2", 1}}));
}

TEST(Sequential, NestsInARun) {
  nn::Sequential here(Scale(1), nn::Sequential(Scale(2), Scale(3)), Scale(4));
  nn::Sequential there(Scale(11), nn::Sequential(Scale(12), Scale(13)), Scale(14));
  FakeHandler handler({here.ptr(), there.ptr()},
                      {{"0", 1}, {"1", 1}, {"1.0", 1}, {"1.1", 0}, {"2", 1}});
  EXPECT_TRUE(is_filled(here->forward(kOnes), 11.0 * 12 * 3 * 14));
  EXPECT_EQ(asked(handler), (std::vector<Asked>{{"", 1}, {"1.1", 0}}));
}

TEST(Sequential, SendsAnyTypesInARun) {
  nn::Sequential here(Split(), Join(), Defaults(1));
  nn::Sequential there(Split(), Join(), Defaults(2));
  FakeHandler handler({here.ptr(), there.ptr()}, {{"0", 1}, {"1", 1}});
  EXPECT_TRUE(is_filled(here->forward(kOnes, 3), 30));
  EXPECT_EQ(asked(handler), (std::vector<Asked>{{"", 1}}));
}

TEST(Sequential, ReturnsAnEmptyValueWhenTheStepIsFailing) {
  auto here = scales(3);
  FakeHandler handler({here.ptr()}, {{"", 1}});
  handler.answers_nothing = true;
  EXPECT_FALSE(here->forward(kOnes).defined());
}

TEST(Sequential, RefusesRunsThatDoNotExist) {
  auto here = scales(3);
  FakeHandler handler({here.ptr(), scales(2).ptr()}, {{"", 1}});
  EXPECT_THROW(here->forward(kOnes), InternalError);
}

TEST(Sequential, DrawsRandomNumbersOnlyForModulesThatAreNotRouted) {
  EXPECT_FALSE(scales(2)->smp_draws_random());
  EXPECT_TRUE(nn::Sequential(PlainScale(1))->smp_draws_random());
}

TEST(AnyModule, HoldsRoutedModules) {
  nn::AnyModule any(Defaults(2));
  EXPECT_TRUE(is_filled(any.forward(kOnes), 20));
  EXPECT_TRUE(is_filled(any.forward(kOnes, 1.0), 2));
  EXPECT_EQ(any.get<Defaults>()->weight[0].item<double>(), 2);
  EXPECT_EQ(any.get<DefaultsImpl>().weight[0].item<double>(), 2);
  EXPECT_THROW(any.get<ScaleImpl>(), UsageError);
  EXPECT_TRUE(nn::AnyModule().is_empty());
  EXPECT_THROW(nn::AnyModule().ptr(), UsageError);
  nn::AnyModule foreign(torch::nn::AnyModule(Scale(4)));
  EXPECT_TRUE(is_filled(foreign.forward(kOnes), 4));
}

TEST(ModuleList, HoldsRoutedModules) {
  nn::ModuleList here(Scale(2), Scale(3));
  nn::ModuleList there(Scale(12), Scale(13));
  FakeHandler handler({here.ptr(), there.ptr()}, {{"1", 1}});
  EXPECT_TRUE(is_filled(here[0]->as<Scale>()->forward(kOnes), 2));
  EXPECT_TRUE(is_filled(here[1]->as<Scale>()->forward(kOnes), 13));
}

}  // namespace
}  // namespace smp::test
