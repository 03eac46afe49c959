// How often a call asks for memory, over both ranks, once everything is warm. What is counted is
// operator new, of LibTorch too; the bytes of tensors come from elsewhere.
#include <gtest/gtest.h>

#ifdef __SANITIZE_ADDRESS__

TEST(AllocationsTest, AreNotCountedHere) {
  GTEST_SKIP() << "AddressSanitizer has an operator new of its own";
}

#else

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "module/call_handler.h"
#include "module/routed_models.h"
#include "server/engine/local_servers.h"
#include "server/replay/recorded_steps.h"
#include "smp/nn/linear.h"
#include "smp/nn/normalization.h"

namespace smp::server::test {
namespace {

/// Of the thread that counts; -1: it does not.
thread_local int allocations_counted = -1;

void note_allocation() noexcept {
  if (allocations_counted >= 0) ++allocations_counted;
}

}  // namespace
}  // namespace smp::server::test

// GCC takes the pair below for a mismatch once it has inlined one of the two.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(std::size_t size) {
  smp::server::test::note_allocation();
  if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace smp::server::test {
namespace {

int allocations_of(const std::function<void()>& run) {
  allocations_counted = 0;
  run();
  return std::exchange(allocations_counted, -1);
}

/// Modules of rank 0, and one of rank 1.
struct MixedImpl : torch::nn::Module {
  smp::nn::Linear plain{nullptr};
  smp::test::Scale random{nullptr};
  smp::nn::BatchNorm1d norm{nullptr};
  smp::nn::Linear remote{nullptr};
  MixedImpl() {
    plain = register_module("plain", smp::nn::Linear(4, 4));
    random = register_module("random", smp::test::Scale());
    norm = register_module("norm", smp::nn::BatchNorm1d(4));
    remote = register_module("remote", smp::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return remote(plain(x)); }
};
SMP_MODULE(Mixed);

class AllocationsTest : public ::testing::Test {
 protected:
  /// The least that `measure` finds in many steps, so that no growing container is counted.
  static int least(const std::function<int(Mixed& model, StepEngine& engine)>& measure) {
    int least = std::numeric_limits<int>::max();
    const auto schedule = schedule::make_simple();
    LocalServers servers(2, 1, Time::kReal);
    servers.run([&](ModuleServer& server) {
      Mixed model;
      place_modules(server, *model, {{"remote", 1}});
      for (int step = 0; step < 20; ++step) {
        StepTask task;
        task.schedule = schedule.get();
        task.weights = {1};
        task.body = [&](int) { least = std::min(least, measure(model, server.engine())); };
        server.run_step(task);
      }
    });
    return least;
  }
  /// Of a call of `module` that runs here, beside the module's own.
  template <class Holder>
  static int of_bracket(Holder MixedImpl::*module) {
    return least([=](Mixed& model, StepEngine&) {
      auto& routed = *dynamic_cast<RoutedBase*>(((*model).*module).get());
      auto& handler = *module::call_handler().get();
      return allocations_of([&] { const LocalCall bracket(handler, routed); });
    });
  }

  static inline const at::Tensor x_ = at::ones({2, 4});
};

TEST_F(AllocationsTest, AreCounted) {
  EXPECT_EQ(allocations_of([] {}), 0);
  EXPECT_EQ(allocations_of([] { operator delete(operator new(8)); }), 1);
  EXPECT_GE(allocations_of([] { at::ones({1}); }), 1) << "those of LibTorch too";
}

TEST_F(AllocationsTest, ACallThatRunsHereMakesNone) {
  EXPECT_EQ(of_bracket(&MixedImpl::plain), 0);
  EXPECT_EQ(of_bracket(&MixedImpl::random), 0) << "a stream of random numbers comes from a pool";
}

TEST_F(AllocationsTest, ANormalisationLayerMakesSomeForItsStatistics) {
  EXPECT_LE(of_bracket(&MixedImpl::norm), 11);
}

/// With the release of the call before.
TEST_F(AllocationsTest, OfARemoteCall) {
  const auto own = [this](bool grad) {
    const at::AutoGradMode mode(grad);
    smp::nn::Linear linear(4, 4);
    linear(x_);
    return allocations_of([&] { linear(x_); });
  };
  const auto remote = [](bool grad) {
    return least([=](Mixed& model, StepEngine&) {
      const at::AutoGradMode mode(grad);
      at::Tensor y = model->remote(x_);  // the step's tables grow, and rank 1 begins the step
      y = model->remote(x_);
      return allocations_of([&] { y = model->remote(x_); });
    });
  };
  EXPECT_LE(remote(true), own(true) + 16);
  EXPECT_LE(remote(false), own(false) + 12) << "without gradients";
}

TEST_F(AllocationsTest, OfTheBackwardOfARemoteCall) {
  const auto backward = least([](Mixed& model, StepEngine& engine) {
    engine.backward({model->remote(x_).sum()}, {}, false);
    const auto loss = model->remote(x_).sum();
    return allocations_of([&] { engine.backward({loss}, {}, false); });
  });
  smp::nn::Linear linear(4, 4);
  linear(x_).sum().backward();
  const auto loss = linear(x_).sum();
  const auto own = allocations_of([&] { loss.backward(); });
  EXPECT_LE(backward, 74);
  EXPECT_LT(backward, own) << "LibTorch's engine makes more than ours and the messages together";
}

/// Of a whole step, over both ranks: the least of those that may be replayed. What rank 1 does when
/// a step has ended on rank 0 counts in the next one.
struct StepAllocations {
  int allocations = std::numeric_limits<int>::max();
  int replayed = 0;  // steps
};

constexpr int kSteps = 40;

StepAllocations allocations_of_a_step(int microbatches, bool promised, bool static_mode) {
  StepAllocations found;
  const auto schedule = schedule::make_simple();
  LocalServers servers(2, 1, Time::kReal);
  servers.options().static_mode = static_mode;
  servers.options().promised_outputs = promised;
  servers.run([&](ModuleServer& server) {
    Mixed model;
    place_modules(server, *model, {{"remote", 1}});
    for (int step = 0; step < kSteps; ++step) {
      StepTask task;
      task.microbatches = microbatches;
      task.schedule = schedule.get();
      task.weights.assign(static_cast<std::size_t>(microbatches), 1);
      task.body = [&](int) {
        server.engine().backward({model(at::ones({2, 4})).sum()}, {}, /*keep_graph=*/false);
      };
      if (server.rank() != PpRank(0)) {
        server.run_step(task);
        continue;
      }
      const int own = allocations_of([&] { server.run_step(task); });
      if (step >= RecordedSteps::kSteps) found.allocations = std::min(found.allocations, own);
    }
    if (server.rank() != PpRank(0)) return;
    found.replayed = static_cast<int>(server.core().counters.replayed);
  });
  return found;
}

/// Its order may let more answers be awaited at once, for which tables of the step grow.
TEST_F(AllocationsTest, AReplayedStepMakesNoMoreThanARecordedOne) {
  constexpr int kGrowth = 2;
  for (const bool promised : {false, true}) {
    for (const int microbatches : {1, 4}) {
      const auto recorded = allocations_of_a_step(microbatches, promised, false);
      const auto replayed = allocations_of_a_step(microbatches, promised, true);
      EXPECT_EQ(recorded.replayed, 0);
      EXPECT_EQ(replayed.replayed, kSteps - RecordedSteps::kSteps);
      EXPECT_LE(replayed.allocations, recorded.allocations + (microbatches == 1 ? 0 : kGrowth))
          << microbatches << " microbatches, promised: " << promised;
    }
  }
}

}  // namespace
}  // namespace smp::server::test

#endif
