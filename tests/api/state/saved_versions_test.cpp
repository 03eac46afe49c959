// What a module writes in place, and its own backward reads: buffers, members, weights. In one
// process the backward of a microbatch comes before the next forward, over stages after several.
#include <ATen/ops/linear.h>
#include <torch/nn/functional/normalization.h>

#include <map>
#include <string>
#include <utility>

#include "api/state/module_state_testing.h"

namespace smp {
namespace saved_versions_test {

using namespace module_state_test;  // NOLINT(google-build-using-namespace)
using module_state_test::Program;   // there is another where tests are compiled together

at::Tensor column(int seed) { return torch::sin(torch::arange(1, kWidth + 1) * 0.7 + seed); }

/// One step of power iteration before each use; sigma's backward needs both vectors.
struct SpectralImpl : torch::nn::Module {
  static torch::nn::functional::NormalizeFuncOptions unit() {
    return torch::nn::functional::NormalizeFuncOptions().dim(0);
  }
  Tensor forward(const Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      v.copy_(torch::nn::functional::normalize(weight.t().mv(u), unit()));
      u.copy_(torch::nn::functional::normalize(weight.mv(v), unit()));
    }
    return torch::tanh(inner(x)).matmul((weight / u.dot(weight.mv(v))).t());
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor weight = register_parameter("weight", torch::outer(column(1), column(2)) + 0.3);
  Tensor u = register_buffer("u", column(3)), v = register_buffer("v", column(4));
};
SMP_MODULE(Spectral);

/// Saves a view of its buffer, and the buffer.
struct CountedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    calls += 1;
    return inner(x * calls[0]) / calls[1];
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor calls = register_buffer("calls", torch::ones({2}));
};
SMP_MODULE(Counted);

/// Keeps it in a member that nobody registers.
struct MemoryImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    kept.mul_(0.5).add_(x.detach().mean(0));
    return inner(x) * kept;
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor kept = torch::ones({kWidth}, torch::kDouble);
};

}  // namespace saved_versions_test

template <>
inline constexpr bool ordered_state_v<saved_versions_test::MemoryImpl> = true;

namespace saved_versions_test {

SMP_MODULE(Memory);

/// Writes its weight, which it reads twice, once as a view.
struct ShrinkingImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      (through_data ? weight.data() : weight).mul_(0.9).clamp_(-0.4, 0.4);
    }
    return torch::linear(torch::tanh(x.matmul(weight)), weight);
  }
  Tensor weight = register_parameter("weight", torch::outer(column(1), column(2)));
  bool through_data = false;
};
SMP_MODULE(Shrinking);

/// The call that writes is another than the one that reads.
struct WritesSometimesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return inner(x) * scale; }
  Tensor update(const Tensor& x) {
    scale.add_(x.detach().abs().mean(0));
    return x;
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor scale = register_buffer("scale", torch::ones({kWidth}));
};
SMP_MODULE(WritesSometimes, update);

template <class Piece>
struct PiecesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(through(second, torch::tanh(through(first, x)))); }
  template <class Any>
  Tensor through(Any& piece, const Tensor& x) {
    return piece(x);
  }
  Tensor through(WritesSometimes& piece, const Tensor& x) { return piece(piece->update(x)); }
  Piece first = register_module("first", Piece());
  Piece second = register_module("second", Piece());
  nn::Linear last = register_module("last", linear());
};
using Pins = std::map<std::string, int>;

/// Wherever the pieces are.
template <class Net>
void expect_any_placement(const Program<Net>& program = {}) {
  expect_as_in_one_process(program, Pins{});
  for (const auto& [first, second] : {std::pair(0, 1), std::pair(1, 0), std::pair(1, 1)}) {
    SCOPED_TRACE(testing::Message() << "first on " << first << ", second on " << second);
    expect_as_in_one_process(program, {{"first", first}, {"second", second}, {"last", 1}}, 2);
  }
}

struct SpectralsImpl : PiecesImpl<Spectral> {};
SMP_MODULE(Spectrals);
struct CountedsImpl : PiecesImpl<Counted> {};
SMP_MODULE(Counteds);
struct MemoriesImpl : PiecesImpl<Memory> {};
SMP_MODULE(Memories);
struct ShrinkingsImpl : PiecesImpl<Shrinking> {};
SMP_MODULE(Shrinkings);
struct WriteSometimesImpl : PiecesImpl<WritesSometimes> {};
SMP_MODULE(WriteSometimes);

TEST(SavedVersions, OfVectorsOfSpectralNormalisation) { expect_any_placement<Spectrals>(); }

TEST(SavedVersions, OfACounterAndItsViews) { expect_any_placement<Counteds>(); }

TEST(SavedVersions, OfAMember) { expect_any_placement<Memories>(); }

TEST(SavedVersions, OfABufferThatAnotherCallWrites) { expect_any_placement<WriteSometimes>(); }

}  // namespace saved_versions_test
}  // namespace smp
