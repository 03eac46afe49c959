// Buffers that are written (docs/design.md, Buffers): by their module, by a load, on all ranks
// alike; and a copy that is not what its owner has is refused by name.
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "api/state/buffers_testing.h"
#include "api/two_ranks.h"

namespace smp::buffer_tests {
namespace written_buffers_test {

using testing::AllOf;
using testing::HasSubstr;

// ---- by their module ---------------------------------------------------------------------------

// Counts its calls in a buffer that others may look at.
struct CounterImpl : torch::nn::Module {
  CounterImpl()
      : linear(register_module("linear", nn::Linear(4, 4))),
        calls(register_buffer("calls", torch::zeros({}, torch::kLong))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) {
    if (!is_tracing()) calls.add_(1);
    return linear(x);
  }
  nn::Linear linear;
  Tensor calls;
};
SMP_MODULE(Counter);

struct LookerImpl : torch::nn::Module {
  LookerImpl() : counter(register_module("counter", Counter())) {}
  Tensor forward(const Tensor& x) {
    auto y = counter(x);
    if (look) y = y * counter->calls;
    return y;
  }
  Counter counter;
  bool look = false;
};
SMP_MODULE(Looker);

/// The trial run does not show it, so the first step is refused if microbatches come in another
/// order than theirs.
TEST(WrittenBuffers, ThatNobodyElseReadsMayChange) {
  expect_trained<Looker>([] { return Looker(); }, {{"counter", 1}}, /*skip_tracing=*/false,
                         /*most_ranks=*/4, /*random_order=*/false);
}

/// The trial run did not show that it is written.
TEST(WrittenBuffers, ThatChangedElsewhereAreNotReadUnseen) {
  for (const int looks_from : {0, 1}) {
    on_ranks(2, [looks_from] {
      Looker net;
      DistributedModel model(net);
      model.set_partition("counter", 1);
      auto train = smp::step([&](Tensor x) {
        auto loss = model(x).mean();
        model.backward(loss);
      });
      for (int step = 0; step < looks_from; ++step) train(batch(step));
      net->look = true;
      EXPECT_THAT(
          refused_step<UsageError>(0, [&] { train(batch(0)); }),
          AllOf(HasSubstr("rank 0: buffer counter.calls lives on rank 1"), HasSubstr("one rank")));
      net->look = false;
      train(batch(0));
      if (rank() == 0) {
        EXPECT_THAT(refusal([&] { static_cast<void>(net->counter->calls.item<int>()); }),
                    HasSubstr("buffer counter.calls lives on rank 1 (which changed it)"));
      }
    });
  }
}

// ---- between steps -----------------------------------------------------------------------------

TEST(WrittenBuffers, MayBeChangedOnAllRanksAlike) {
  on_ranks(2, [] {
    torch::manual_seed(2);
    PlacedReader own;
    auto train = smp::step([&](Tensor x) { return own.model(x).mean(); });
    torch::manual_seed(2);
    Reader plain(8);
    for (int step = 0; step < kSteps; ++step) {
      const at::NoGradGuard no_grad;
      const auto loss = train(batch(0)).reduce_mean();
      EXPECT_NEAR(loss.item<double>(), plain->forward(batch(0)).mean().item<double>(), 1e-12);
      for (auto& tables : {own.net->tables, plain->tables}) tables->scale.mul_(1.1);
    }
  });
}

TEST(WrittenBuffers, ThatAreLoadedAreLoadedIntoTheirCopiesToo) {
  on_ranks(2, [] {
    torch::manual_seed(2);
    PlacedReader own;
    auto train = smp::step([&](Tensor x) { return own.model(x).mean(); });
    const at::NoGradGuard no_grad;
    train(batch(0));
    auto dict = own.model.state_dict(kAllPpRanks);
    Reader plain(8);
    load_state_dict(*plain, dict);
    plain->tables->scale.mul_(3);
    own.model.load_state_dict(state_dict(*plain));
    for (int step = 0; step < 2; ++step) {
      EXPECT_NEAR(train(batch(0)).reduce_mean().item<double>(),
                  plain->forward(batch(0)).mean().item<double>(), 1e-12);
    }
  });
}

TEST(WrittenBuffers, OfAnotherRankThatOnlyTheReaderChangesAreRefused) {
  on_ranks(2, [] {
    PlacedReader own;
    auto train = smp::step([&](Tensor x) { own.model.backward(own.model(x).mean()); });
    train(batch(0));
    if (rank() == 0) own.net->tables->scale.mul_(2);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(batch(0)); }),
                HasSubstr("rank 0: buffer tables.scale lives on rank 1"));
  });
}

}  // namespace written_buffers_test
}  // namespace smp::buffer_tests
