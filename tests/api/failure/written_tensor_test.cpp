// A tensor that the forward saved for its backward, and that was written in between: LibTorch's
// error says in more words which one, who may have done it, and what to do.
#include <torch/types.h>

#include "api/far_model.h"
#include "api/two_ranks.h"

namespace smp {
namespace written_tensor_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Runs on two ranks, all forwards first, where no trial has looked.
void on_two_ranks(int microbatches, const std::function<void()>& rank_main) {
  Config config;
  config.microbatches = microbatches;
  config.pipeline = "simple";
  config.plan_cache = "off";
  config.skip_tracing = true;
  run_local(2, rank_main, config, {.seed = 1});
}

TEST(WrittenTensor, OfTheMicrobatchItselfIsNamedToo) {
  on_two_ranks(1, [] {
    FarModel own;
    auto train = smp::step([&](Tensor x) {
      const auto scale = torch::ones({2}, torch::kDouble);
      const auto loss = (own.model(x) * scale).sum();
      scale.mul_(0.5);
      own.model.backward(loss);
    });
    EXPECT_THAT(refused_step<c10::Error>(0, [&] { train(rows(4)); }),
                AllOf(HasSubstr("needed by MulBackward0"),
                      HasSubstr("microbatch 0 wrote it itself, as it would in one process")));
  });
}

/// A layer that scales by a buffer, and counts it up too early.
struct ScalesImpl : torch::nn::Module {
  ScalesImpl() : scale(register_buffer("scale", torch::ones({3}, torch::kDouble))) {}
  Tensor forward(const Tensor& x) {
    const auto y = x * scale;
    scale.add_(1);
    return y;
  }
  Tensor scale;
};
SMP_MODULE(Scales);
struct HasScalesImpl : torch::nn::Module {
  HasScalesImpl()
      : linear(register_module("linear", torch::nn::Linear(3, 3))),
        scales(register_module("scales", Scales())) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return scales(linear(x)); }
  torch::nn::Linear linear;
  Scales scales;
};
SMP_MODULE(HasScales);

TEST(WrittenTensor, OfAModelHasItsName) {
  on_two_ranks(1, [] {
    torch::manual_seed(1);
    DistributedModel model((HasScales()));
    model.set_partition("", 0);
    model.set_partition("scales", 1);
    auto train = smp::step([&](Tensor x) { model.backward(model(x).sum()); });
    EXPECT_THAT(
        refusal<RemoteError>([&] { train(rows(4)); }),
        AllOf(HasSubstr("rank 1, module scales (backward), microbatch 0: one of the variables "
                        "needed for gradient computation has been modified"),
              Not(HasSubstr("captured"))));
  });
}

}  // namespace written_tensor_test
}  // namespace smp
