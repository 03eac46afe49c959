// Modules with state: what they keep in members and buffers is what one process would find there.
#include <memory>

#include "api/state/module_state_testing.h"

namespace smp {
namespace module_state_test {

TEST(ModuleState, AScratchTensorThatTheParentReads) { expect_as_in_one_process<ReadsScratch>(); }
TEST(ModuleState, SkipsInAList) { expect_as_in_one_process<UNet>(); }
TEST(ModuleState, AMemoryInAPartThatIsNotRouted) { expect_as_in_one_process<HoldsPlain>(); }
TEST(ModuleState, AMapOfWhatItKept) { expect_as_in_one_process<ReadsFeatures>(); }
TEST(ModuleState, AnObjectThatTwoModulesShare) { expect_as_in_one_process<PassesNotes>(); }
TEST(ModuleState, ATensorWrittenInPlace) { expect_as_in_one_process<Averaged>(); }
/// Reads a tensor that another module keeps, which is neither above nor below it.
struct ReadsSiblingImpl : torch::nn::Module {
  explicit ReadsSiblingImpl(Scratch sibling) : sibling(std::move(sibling)) {}
  Tensor forward(const Tensor& x) { return inner(sibling->kept.defined() ? x * sibling->kept : x); }
  Scratch sibling;
  nn::Linear inner = register_module("inner", linear());
};
SMP_MODULE(ReadsSibling);

struct SiblingsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return reader(middle(block(x))); }
  Scratch block = register_module("block", Scratch());
  nn::Linear middle = register_module("middle", linear());
  ReadsSibling reader = register_module("reader", ReadsSibling(block));
};
SMP_MODULE(Siblings);

TEST(ModuleState, AScratchTensorThatASiblingReads) { expect_as_in_one_process<Siblings>(); }

TEST(ModuleState, ACounter) { expect_as_in_one_process<Counts>(); }

TEST(ModuleState, AGeneratorOfItsOwn) { expect_as_in_one_process<AddsNoise>(); }

TEST(ModuleState, AnAuxiliaryLossThatTheParentReads) {
  Program<MoeNet> program;
  program.setup = [](MoeNet& net) { net->parent_reads = true; };
  expect_as_in_one_process(program);
}

TEST(ModuleState, AnAuxiliaryLossThatTheBodyReads) {
  Program<MoeNet> program;
  program.loss = [](MoeNet& net, const auto& forward, const Tensor& x) {
    auto loss = forward(x).pow(2).mean();
    return loss + net->moe->aux[0];
  };
  expect_as_in_one_process(program);
}

TEST(ModuleState, MemoryThatIsCutInTheBodyAfterItsBackward) {
  Program<Recurrent> program;
  program.after_backward = [](Recurrent& net) { net->cell->hidden.detach_(); };
  expect_as_in_one_process(program);
}

TEST(ModuleState, AMemberThatTheBodySetsForEachMicrobatch) {
  Program<Counts> program;
  program.loss = [](Counts& net, const auto& forward, const Tensor& x) {
    net->counter->calls = static_cast<int>(x.sum().template item<double>() * 10);
    return forward(x).pow(2).mean();
  };
  expect_as_in_one_process(program);
}

TEST(ModuleState, AMemberOfAModelThatIsNotRouted) {
  Program<PlainRoot> program;
  program.setup = [](PlainRoot& net) { net->remembers = true; };
  expect_as_in_one_process(program, {{"one", 1}, {"two", 0}}, 2);
}

/// A variable outside the model, which the body counts up and multiplies with. Each run counts once
/// round.
template <class Net>
Program<Net> counting_body() {
  const auto count = std::make_shared<int>(0);
  Program<Net> program;
  program.loss = [count](Net&, const auto& forward, const Tensor& x) {
    *count = *count % (kSteps * kMicrobatches) + 1;
    return forward(x).pow(2).mean() * *count;
  };
  return program;
}

TEST(ModuleState, AVariableThatTheBodyCounts) {
  expect_as_in_one_process(counting_body<Masks>(), {{"", 0}, {"one", 1}, {"two", 2}}, 3);
  expect_as_in_one_process(counting_body<PlainRoot>(), {{"one", 1}, {"two", 0}}, 2);
}

TEST(ModuleState, BuffersThatForwardWrites) { expect_as_in_one_process<Buffers>(); }

TEST(ModuleState, BuffersThatForwardWritesOnOtherRanks) {
  expect_as_in_one_process<Buffers>({}, {{"", 0}, {"ema", 2}, {"vq", 1}}, 3);
}

TEST(ModuleState, ACacheStaysFreeToMove) {
  expect_as_in_one_process<Masks>();
  expect_as_in_one_process<Masks>({}, {{"", 0}, {"one", 1}, {"two", 2}}, 3);
}

TEST(ModuleState, WithoutATrialTheFirstStepShowsIt) {
  expect_as_in_one_process<Counts>({}, {{"", 0}, {"first", 1}, {"last", 1}}, 2, false);
  expect_as_in_one_process<UNet>({}, {{"", 0}, {"down2", 1}, {"up1", 1}}, 2, false);
  expect_as_in_one_process<Masks>({}, {{"", 0}, {"one", 1}, {"two", 2}}, 3, false);
}

}  // namespace module_state_test
}  // namespace smp
