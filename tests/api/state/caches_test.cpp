// Members that a module fills at its first call: free to move as long as nobody else reads them.
#include <cmath>
#include <vector>

#include "api/state/module_state_testing.h"

namespace smp {
namespace caches_test {

using namespace module_state_test;  // NOLINT(google-build-using-namespace)
using module_state_test::Program;   // there is another where tests are compiled together
using testing::AllOf;
using testing::HasSubstr;

/// Every call sets the same width.
struct PatchImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    width = x.size(1);
    return inner(x);
  }
  nn::Linear inner = register_module("inner", linear());
  std::int64_t width = 1;
};
SMP_MODULE(Patch);

struct ScalesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto y = head(patch(x));
    return y / std::sqrt(static_cast<double>(patch->width));
  }
  Patch patch = register_module("patch", Patch());
  nn::Linear head = register_module("head", linear());
};
SMP_MODULE(Scales);

TEST(Caches, AWidthThatTheParentReads) { expect_as_in_one_process<Scales>(); }

TEST(Caches, AWidthThatTheBodyReads) {
  Program<Scales> program;
  program.loss = [](Scales& net, const auto& forward, const Tensor& x) {
    const auto y = forward(x);
    return y.pow(2).sum() / static_cast<double>(x.size(0) * net->patch->width);
  };
  expect_as_in_one_process(program);
}

TEST(Caches, ThatIsReadMayNotLiveElsewhere) {
  on_ranks(2, [] {
    const auto text = refusal<Error>([] { on_this_rank<Scales>({}, {{"", 0}, {"patch", 1}}); });
    EXPECT_THAT(text, AllOf(HasSubstr("patch"), HasSubstr("sets members at its first call")));
  });
}

/// The first call alone finds the shape, in memory of its own. Its sibling reads it.
struct MeasuresImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (shape.empty()) shape = {x.size(0), x.size(1)};
    return inner(x);
  }
  nn::Linear inner = register_module("inner", linear());
  std::vector<std::int64_t> shape;
};
SMP_MODULE(Measures);

struct UsesShapeImpl : torch::nn::Module {
  explicit UsesShapeImpl(Measures measures) : source(std::move(measures)) {}
  Tensor forward(const Tensor& x) {
    return inner(x) * (source->shape.empty() ? 1.0 : 1.0 / static_cast<double>(source->shape[1]));
  }
  Measures source;
  nn::Linear inner = register_module("inner", linear());
};
SMP_MODULE(UsesShape);

struct SiblingsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return uses(middle(measures(x))); }
  Measures measures = register_module("measures", Measures());
  nn::Linear middle = register_module("middle", linear());
  UsesShape uses = register_module("uses", UsesShape(measures));
};
SMP_MODULE(Siblings);

TEST(Caches, AShapeThatASiblingReads) { expect_as_in_one_process<Siblings>(); }

/// What it keeps for ever depends on which microbatch comes first.
struct CalibratedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (!scale.defined()) scale = x.detach().abs().max();
    return inner(x / scale);
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor scale;
};
SMP_MODULE(Calibrated);

/// The very first microbatch comes last to it.
struct CalibratesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto y = x;
    const int times = x[0][0].item<double>() == 0 ? 8 : 1;
    for (int i = 0; i < times; ++i) y = detour(y).tanh();
    return two(middle(one(y)).tanh());
  }
  nn::Linear detour = register_module("detour", linear());
  Calibrated one = register_module("one", Calibrated());
  nn::Linear middle = register_module("middle", linear());
  Calibrated two = register_module("two", Calibrated());
};
SMP_MODULE(Calibrates);

TEST(Caches, AScaleOfTheFirstMicrobatch) {
  expect_as_in_one_process<Calibrates>();
  expect_as_in_one_process<Calibrates>({}, {{"", 0}, {"detour", 2}, {"one", 1}, {"two", 2}}, 3);
}

/// Hands its cache to a child, by reference: that is no reading behind its back.
struct MultipliesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, const Tensor& by) { return inner(x) * by; }
  nn::Linear inner = register_module("inner", linear());
};
SMP_MODULE(Multiplies);

struct HandsOverImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (!mask.defined()) mask = torch::ones({kWidth}, x.options()).cumsum(0) / kWidth;
    return child(x, mask);
  }
  Multiplies child = register_module("child", Multiplies());
  Tensor mask;
};
SMP_MODULE(HandsOver);

struct HandsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return two(one(x).tanh()); }
  HandsOver one = register_module("one", HandsOver());
  HandsOver two = register_module("two", HandsOver());
};
SMP_MODULE(Hands);

TEST(Caches, ThatIsAnArgumentStaysFreeToMove) {
  expect_as_in_one_process<Hands>();
  expect_as_in_one_process<Hands>({}, {{"", 0}, {"one", 1}, {"one.child", 2}, {"two", 2}}, 3);
}

/// A model that is not routed reads what it sets itself.
struct PlainRootWithWidthImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    width = x.size(1);
    return two(one(x).tanh()) / static_cast<double>(width);
  }
  nn::Linear one = register_module("one", linear());
  nn::Linear two = register_module("two", linear());
  std::int64_t width = 1;
};
TORCH_MODULE(PlainRootWithWidth);

TEST(Caches, OfAModelThatIsNotRouted) {
  expect_as_in_one_process<PlainRootWithWidth>({}, {{"one", 1}, {"two", 0}}, 2);
}

}  // namespace caches_test
}  // namespace smp
