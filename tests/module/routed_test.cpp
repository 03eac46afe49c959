// SMP_MODULE holders behave like TORCH_MODULE ones, and calls of modules that live elsewhere run on
// the owner's copy, whatever the signature.
#include "smp/detail/routed.h"

#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <sstream>
#include <thread>

#include "module/fake_handler.h"
#include "module/routed_models.h"
#include "smp/error.h"

namespace smp::test {
namespace {

/// Rank 0 holds `Holder(2)`, rank 1, which owns it, `Holder(5)`.
template <class Holder>
struct Remote {
  Holder here{2.0};
  Holder there{5.0};
  FakeHandler handler{{here.ptr(), there.ptr()}, {{"", 1}}};
};

// ---- local behaviour ---------------------------------------------------------------------------

TEST(Routed, WorksLikeATorchModuleWithoutTheLibrary) {
  Net net(2);
  EXPECT_TRUE(is_filled(net(kOnes), 2 * 3 * 4 * 5));
  EXPECT_TRUE(is_filled(net->forward(kOnes), 120));
  EXPECT_EQ(
      net->named_parameters().keys(),
      (std::vector<std::string>{"first.weight", "rest.0.weight", "rest.1.weight", "last.weight"}));
  EXPECT_EQ(net->rest->at<ScaleImpl>(1).weight[0].item<double>(), 4);
  EXPECT_FALSE(Net(nullptr));
}

TEST(Routed, ShowsTheUsersClassNames) {
  Net net;
  std::ostringstream text;
  text << net;
  EXPECT_EQ(text.str(),
            "smp::test::NetImpl(\n  (first): smp::test::ScaleImpl\n"
            "  (rest): torch::nn::ModuleList(\n    (0): smp::test::ScaleImpl\n"
            "    (1): smp::test::ScaleImpl\n  )\n  (last): smp::test::ConcreteImpl\n)");
  EXPECT_EQ(net->name(), "smp::test::NetImpl");
  EXPECT_EQ(net->smp_type_name(), "smp::test::NetImpl");
}

TEST(Routed, WorksInTorchContainers) {
  torch::nn::Sequential both(Scale(2), Defaults(3));
  EXPECT_TRUE(is_filled(both->forward(kOnes), 60));
  torch::nn::AnyModule any(Defaults(3));
  EXPECT_TRUE(is_filled(any.forward(kOnes, 2.0), 6));
  EXPECT_NE(any.ptr()->as<DefaultsImpl>(), nullptr);
}

TEST(Routed, KeepsDefaultArgumentsOfConstMethods) {
  const Tied tied(2);
  EXPECT_TRUE(is_filled(tied->logits(kOnes), 0.5));
  EXPECT_TRUE(is_filled(tied->logits(kOnes, 4), 2));
}

// ---- remote calls ------------------------------------------------------------------------------

TEST(Routed, SendsACallToTheOwner) {
  Remote<Scale> scale;
  EXPECT_TRUE(is_filled(scale.here(kOnes), 5));
  EXPECT_TRUE(is_filled(scale.here->forward(kOnes), 5));
  ASSERT_EQ(scale.handler.requests.size(), 2u);
  EXPECT_EQ(scale.handler.requests[0].signature,
            "at::Tensor smp::test::ScaleImpl::forward(at::Tensor const&)");
}

TEST(Routed, SendsConstMethods) {
  Remote<ConstScale> scale;
  EXPECT_TRUE(is_filled(std::as_const(*scale.here).forward(kOnes), 5));
  EXPECT_EQ(scale.handler.requests.at(0).signature,
            "at::Tensor smp::test::ConstScaleImpl::forward(at::Tensor) const");
}

TEST(Routed, TakesDefaultArgumentsAtTheOwner) {
  Remote<Defaults> layer;
  EXPECT_TRUE(is_filled(layer.here(kOnes), 50));
  EXPECT_TRUE(is_filled(layer.here(kOnes, 2), 10));
  EXPECT_EQ(layer.here(kOnes, 2, std::vector<int64_t>{2, 1}).dim(), 2);
  EXPECT_TRUE(is_filled(layer.here->forward(kOnes, 2, {}, kOnes), 11));
  EXPECT_EQ(layer.handler.requests.size(), 4u);
}

TEST(Routed, SendsOverloadsByTheTypesOfTheCall) {
  Remote<Overloaded> layer;
  Tensor input = torch::ones({2});
  EXPECT_TRUE(is_filled(layer.here(input), 5));
  const auto [scaled, next] = layer.here(input, 3);
  EXPECT_TRUE(is_filled(scaled, 15));
  EXPECT_EQ(next, 4);
  EXPECT_EQ(std::as_const(*layer.here).forward("text"), "text!");
  EXPECT_EQ(layer.handler.requests.size(), 3u);
}

TEST(Routed, SendsTemplatedMethods) {
  Remote<Templated> layer;
  EXPECT_TRUE(is_filled(layer.here(kOnes, 2), 10));
  EXPECT_TRUE(is_filled(layer.here(kOnes, 0.5f), 2.5));
  EXPECT_EQ(layer.handler.requests.size(), 2u);
}

TEST(Routed, SendsVirtualCallsThroughABase) {
  Remote<Concrete> layer;
  AbstractLayer& base = *layer.here;
  EXPECT_TRUE(is_filled(base.forward(kOnes), 5));
  EXPECT_EQ(layer.handler.requests.size(), 1u);
}

TEST(Routed, SendsNamedMethodsWithoutForward) {
  Remote<Tied> tied;
  EXPECT_TRUE(is_filled(tied.here->embed(kOnes), 5));
  EXPECT_TRUE(is_filled(tied.here->logits(kOnes), 0.2));
  EXPECT_TRUE(is_filled(tied.here->logits(kOnes, 5), 1));
  tied.here->remember(7);
  EXPECT_EQ(tied.here->remembered, 0);
  EXPECT_EQ(tied.there->remembered, 7);
}

TEST(Routed, SendsStructsMapsAndTuples) {
  Remote<Stateful> layer;
  auto [output, state] =
      layer.here->forward(kOnes, State{{}, 4, {}}, {{"scale", 2}}, torch::zeros({3}));
  EXPECT_TRUE(is_filled(output, 10));
  EXPECT_EQ(state.step, 5);
  EXPECT_EQ(state.extra[0]->numel(), 3);
  EXPECT_FALSE(state.extra[1].has_value());
}

TEST(Routed, FollowsCallsFromRankToRank) {
  Net here(2);
  Net there(2);
  FakeHandler handler({here.ptr(), there.ptr()}, {{"first", 1}, {"rest.1", 1}, {"last", 1}});
  EXPECT_TRUE(is_filled(here(kOnes), 120));
  std::vector<std::string> asked;
  for (const auto& request : handler.requests) asked.push_back(request.path);
  EXPECT_EQ(asked, (std::vector<std::string>{"first", "rest.1", "last"}));
}

TEST(Routed, BracketsCallsThatRunHere) {
  Net here(2);
  FakeHandler handler({here.ptr()}, {});
  here(kOnes);
  EXPECT_EQ(handler.entered, (std::vector<std::string>{"", "first", "rest.0", "rest.1", "last"}));
  EXPECT_TRUE(handler.balanced);
}

TEST(Routed, CallsPlainlyBetweenSteps) {
  Remote<Scale> scale;
  scale.handler.step_runs = false;
  EXPECT_TRUE(is_filled(scale.here(kOnes), 2));
  EXPECT_TRUE(scale.handler.requests.empty());
}

TEST(Routed, RunsNoCallOnAModuleOfAnotherClass) {
  using Forward =
      smp::detail::RoutedCall<smp::detail::SmpMethod_forward, ScaleImpl, Tensor, const Tensor&>;
  TwoScales other;
  Packet arguments;
  EXPECT_THROW(Forward::entry().run(*other, arguments), InternalError);
  Scale scale(3);
  EXPECT_EQ(scale->smp_as(typeid(ScaleImpl)), static_cast<ScaleImpl*>(scale.get()));
  EXPECT_EQ(scale->smp_as(typeid(TwoScalesImpl)), nullptr);
}

TEST(Routed, ReturnsAnEmptyValueWhenTheStepIsFailing) {
  Remote<Scale> scale;
  scale.handler.answers_nothing = true;
  EXPECT_FALSE(scale.here(kOnes).defined());
}

// ---- what cannot cross -------------------------------------------------------------------------

TEST(Routed, SaysWhatCannotCross) {
  EXPECT_EQ(Scale()->smp_cannot_cross(), "");
  EXPECT_EQ(Defaults()->smp_cannot_cross(), "");
  EXPECT_EQ(Callback()->smp_cannot_cross(),
            "argument 2 of forward, std::function<at::Tensor (at::Tensor)>, cannot be sent to "
            "another rank");
  EXPECT_NE(OutputParameter()->smp_cannot_cross().find("argument 2 of forward"), std::string::npos);
  EXPECT_EQ(ReferenceResult()->smp_cannot_cross(),
            "the result of forward, at::Tensor&, cannot be sent to another rank");
}

TEST(Routed, RunsLocallyWhatCannotCross) {
  EXPECT_TRUE(is_filled(Callback(3)(kOnes, [](Tensor x) { return x + 1; }), 6));
  std::vector<Tensor> out;
  OutputParameter(3)(kOnes, out);
  EXPECT_TRUE(is_filled(out.at(0), 3));
}

TEST(Routed, RefusesToSendWhatCannotCross) {
  Remote<Callback> layer;
  try {
    layer.here(kOnes, [](Tensor x) { return x; });
    FAIL();
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("std::function"), std::string::npos) << error.what();
  }
}

// ---- clone, save, load, to ---------------------------------------------------------------------

TEST(Routed, ClonesIntoARoutedModule) {
  TwoScales net;
  net->first->smp_pin = 3;
  net->first->smp_tensor_parallel = true;
  auto copy = std::dynamic_pointer_cast<TwoScales::Impl>(net->clone());
  ASSERT_NE(copy, nullptr);
  torch::NoGradGuard no_grad;
  net->first->weight.fill_(100);
  EXPECT_TRUE(is_filled(copy->forward(kOnes), 6));
  EXPECT_EQ(copy->name(), "smp::test::TwoScalesImpl");
  EXPECT_EQ(copy->first->smp_pin, 3);
  EXPECT_EQ(copy->first->smp_tensor_parallel, true);
  EXPECT_EQ(copy->second->smp_tensor_parallel, std::nullopt);
  FakeHandler handler({copy, net.ptr()}, {{"first", 1}});
  EXPECT_TRUE(is_filled(copy->forward(kOnes), 300));
}

TEST(Routed, SavesAndLoadsBeforePlacement) {
  std::stringstream file;
  Net net(2);
  torch::save(net, file);
  Net other(1);
  torch::load(other, file);
  EXPECT_TRUE(is_filled(other(kOnes), 120));
  other->to(torch::kDouble);
  EXPECT_EQ(other->first->weight.dtype(), torch::kDouble);
}

template <class Action>
void expect_refused(const Action& action, const std::string& what) {
  try {
    action();
    FAIL() << what;
  } catch (const UnsupportedError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(what), std::string::npos) << text;
    EXPECT_NE(text.find("NetImpl"), std::string::npos) << text;
    EXPECT_NE(text.find("before the first step"), std::string::npos) << text;
  }
}

/// Gives back the memory of `tensor`, as placement does with what belongs to other ranks.
void free_memory(const at::Tensor& tensor) {
  tensor.unsafeGetTensorImpl()->release_storage_and_set_meta_custom_data_ptr_error_msg_({});
}

TEST(Routed, CopiesSavesAndCastsAPlacedModuleThatIsAllHere) {
  TwoScales two;
  two->smp_place.owner = two->first->smp_place.owner = PpRank(0);
  const auto copy = std::dynamic_pointer_cast<TwoScales::Impl>(two->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_FALSE(copy->smp_place.placed());
  EXPECT_FALSE(copy->first->weight.is_same(two->first->weight));
  Net net(2);
  net->smp_place.owner = net->first->smp_place.owner = PpRank(0);
  std::stringstream file;
  torch::save(net, file);
  Net other(1);
  other->smp_place.owner = PpRank(0);
  torch::load(other, file);
  EXPECT_TRUE(is_filled(other(kOnes), 120));
  net->to(torch::kDouble);
  EXPECT_EQ(net->first->weight.dtype(), torch::kDouble);
}

TEST(Routed, RefusesWhatNeedsForeignParametersAfterPlacement) {
  Net net;
  net->smp_place.owner = PpRank(0);
  free_memory(net->first->weight);
  std::stringstream file;
  expect_refused([&] { net->clone(); }, "clone()");
  expect_refused([&] { torch::save(net, file); }, "save()");
  expect_refused([&] { net->to(torch::kDouble); }, "to()");
  expect_refused([&] { net->to(torch::kCPU); }, "to()");
  expect_refused([&] { net->to(torch::kCPU, torch::kDouble); }, "to()");
  torch::save(Net(), file);
  expect_refused([&] { torch::load(net, file); }, "load()");
}

// ---- threads -----------------------------------------------------------------------------------

TEST(Routed, RefusesForeignThreadsDuringAStep) {
  Scale scale;
  scale->smp_place = {0, PpRank(1), "encoder.scale"};
  ++module::steps_running();
  std::string text;
  std::thread([&] {
    try {
      scale(kOnes);
    } catch (const UsageError& error) {
      text = error.what();
    }
  }).join();
  --module::steps_running();
  EXPECT_NE(text.find("encoder.scale"), std::string::npos) << text;
  std::thread([&] { EXPECT_TRUE(is_filled(scale(kOnes), 1)); }).join();
}

TEST(Routed, LetsForeignThreadsCallModulesThatAreNotPlaced) {
  Scale scale;
  ++module::steps_running();
  std::thread([&] { EXPECT_TRUE(is_filled(scale(kOnes), 1)); }).join();
  --module::steps_running();
}

}  // namespace
}  // namespace smp::test
