// Which calls the tracer sees of a model and what they cost; and that it leaves no trace in it.
#include "trial/tracer/tracer.h"

#include <gmock/gmock.h>
#include <torch/nn/functional/activation.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <thread>

#include "deferred/meta_scope.h"
#include "smp/delayed_init.h"
#include "smp/module.h"
#include "smp/nn.h"
#include "trial/traced_run.h"

namespace smp::partitioning {
namespace {

using at::Tensor;
using testing::ElementsAre;
namespace F = torch::nn::functional;

std::vector<int> modules_of(const simulate::Trace& trace) {
  std::vector<int> modules;
  for (const auto& call : trace.calls) modules.push_back(call.module);
  return modules;
}

std::vector<int> callers_of(const simulate::Trace& trace) {
  std::vector<int> callers;
  for (const auto& call : trace.calls) callers.push_back(call.caller);
  return callers;
}

// ---- calls -------------------------------------------------------------------------------------

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : first(register_module("first", nn::Linear(8, 8))),
        second(register_module("second", nn::Linear(8, 4))) {}
  Tensor forward(const Tensor& x) { return second(first(first(x)).relu()); }
  nn::Linear first, second;
};
SMP_MODULE(Block);

TEST(Tracer, SeesCallsInOrderWithTheirCallersAndBytes) {
  Block net;
  const auto seen = trace(*net, [&] { return std::vector{net(torch::ones({5, 8}))}; });
  EXPECT_THAT(modules_of(seen), ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(callers_of(seen), ElementsAre(-1, 0, 0, 0));
  EXPECT_EQ(seen.calls[0].input_bytes, 5 * 8 * 4);
  EXPECT_EQ(seen.calls[0].output_bytes, 5 * 4 * 4);
  EXPECT_EQ(seen.calls[1].output_bytes, 5 * 8 * 4);
  EXPECT_EQ(seen.source, simulate::CostSource::kEstimated);
}

/// A body that calls backward on what `loss_of` makes of the net's result.
int loss_call_of(Block& net, const std::function<Tensor(const Tensor&)>& loss_of) {
  const Described described(*net);
  Tracer tracer({{&described.tree, &described.modules, &described.routed}}, 1);
  const auto body = [&] {
    const auto loss = loss_of(net(torch::ones({5, 8})));
    tracer.note_backward({loss});
    return std::vector{loss};
  };
  return tracer.run({body}, 2).at(0).loss_call;
}

TEST(Tracer, SeesWhichCallReturnsTheLoss) {
  Block net;
  EXPECT_EQ(loss_call_of(net, [](const Tensor& y) { return y; }), 3) << "the innermost";
  EXPECT_EQ(loss_call_of(net, [](const Tensor& y) { return y.sum(); }), -1);
  EXPECT_EQ(loss_call_of(net,
                         [&](const Tensor& y) {
                           const auto loss = net->second(torch::ones({5, 8}));
                           return loss + y;
                         }),
            -1);
  EXPECT_EQ(trace(*net,
                  [&] {
                    return std::vector{net(torch::ones({5, 8}))};
                  })
                .loss_call,
            -1)
      << "no backward";
}

TEST(Tracer, GivesTimeToTheCallThatSpendsIt) {
  Block net;
  const auto x = torch::ones({5, 8});
  const auto seen = trace(*net, [&] { return std::vector{net(x).exp()}; });
  const auto linear = [&](int out) {
    return meter([&] {
             torch::linear(x, torch::ones({out, 8}, torch::kFloat), torch::ones({out}));
           })
        .seconds;
  };
  const auto ones = [&](at::IntArrayRef sizes) {
    return meter([&] { torch::ones(sizes, torch::kFloat); }).seconds;
  };
  EXPECT_NEAR(seen.calls[1].after.seconds, linear(8) - ones({8, 8}) - ones({8}), 1e-12);
  EXPECT_EQ(seen.calls[1].after.seconds, seen.calls[2].after.seconds);
  EXPECT_EQ(seen.calls[1].before.seconds, 0);
  EXPECT_NEAR(seen.calls[3].before.seconds, meter([&] { x.relu(); }).seconds, 1e-12);
  EXPECT_NEAR(seen.body_after.seconds,
              meter([&] {
                torch::ones({5, 4}).exp();
              }).seconds -
                  ones({5, 4}),
              1e-12);
}

/// Of a layer that waits for others while it runs.
TEST(Tracer, AddsWhatAModuleWaitsForOtherRanks) {
  Block net;
  const auto x = torch::ones({5, 8});
  const Described described(*net);
  const auto run = [&](bool waits, int repeats) {
    Tracer tracer({{&described.tree, &described.modules, &described.routed}}, 1);
    return tracer.run({[&] {
                        const auto y = net(x);
                        if (waits) tracer.note_wait(2, 3);
                        return std::vector{y};
                      }},
                      repeats)[0];
  };
  const auto with = run(true, 0), without = run(false, 0);
  EXPECT_NEAR(with.body_after.seconds - without.body_after.seconds, 2, 1e-9);
  EXPECT_NEAR(with.body_after.backward_seconds - without.body_after.backward_seconds, 3, 1e-9);
  EXPECT_EQ(with.calls[1].after.seconds, without.calls[1].after.seconds);
  const auto timed = run(true, 3);
  EXPECT_NEAR(timed.body_after.seconds, 2, 0.5) << "by the clock";
  EXPECT_NEAR(timed.body_after.backward_seconds, 3, 0.5);
}

TEST(Tracer, GivesTheSameNumbersOnMetaTensors) {
  Block net;
  const auto real = trace(*net, [&] { return std::vector{net(torch::ones({5, 8}))}; });
  Block delayed = [] {
    const delay_param_initialization delay;
    return Block();
  }();
  const auto meta = trace(*delayed, [&] {
    const deferred::MetaScope scope;
    return std::vector{delayed(torch::ones({5, 8}))};
  });
  ASSERT_EQ(real.calls.size(), meta.calls.size());
  for (std::size_t i = 0; i < real.calls.size(); ++i) {
    EXPECT_EQ(real.calls[i].before.seconds, meta.calls[i].before.seconds);
    EXPECT_EQ(real.calls[i].after.seconds, meta.calls[i].after.seconds);
    EXPECT_EQ(real.calls[i].after.activation_bytes, meta.calls[i].after.activation_bytes);
    EXPECT_EQ(real.calls[i].after.gradient_bytes, meta.calls[i].after.gradient_bytes);
    EXPECT_EQ(real.calls[i].caller_gradient_bytes, meta.calls[i].caller_gradient_bytes);
    EXPECT_EQ(real.calls[i].caller_live_bytes, meta.calls[i].caller_live_bytes);
    EXPECT_EQ(real.calls[i].output_bytes, meta.calls[i].output_bytes);
  }
}

TEST(Tracer, SeesEveryModuleOfASequentialAlsoTheSameOneTwice) {
  nn::ReLU relu;
  nn::Sequential net(nn::Linear(4, 4), relu, relu, nn::Linear(4, 2));
  const auto seen = trace(*net, [&] {
    return std::vector{net->forward<Tensor>(torch::ones({3, 4}))};
  });
  EXPECT_THAT(callers_of(seen), ElementsAre(-1, 0, 0, 0, 0));
  EXPECT_EQ(seen.calls[0].output_bytes, 3 * 2 * 4);
  EXPECT_EQ(seen.calls[1].output_bytes, 3 * 4 * 4);
  EXPECT_TRUE(seen.calls[0].sequential);
  EXPECT_FALSE(seen.calls[1].sequential);
}

TEST(Tracer, TakesTheClockIfAsked) {
  Block net;
  int runs = 0;
  const auto seen = trace(
      *net,
      [&] {
        ++runs;
        return std::vector{net(torch::ones({5, 8}))};
      },
      3);
  EXPECT_EQ(runs, 4);
  EXPECT_EQ(seen.source, simulate::CostSource::kMeasured);
  EXPECT_THAT(modules_of(seen), ElementsAre(0, 1, 1, 2));
  EXPECT_EQ(seen.calls[1].after.activation_bytes, 5 * 8 * 4);
}

struct NestImpl : torch::nn::Module {
  explicit NestImpl(int depth)
      : linear(register_module("linear", nn::Linear(8, 8))),
        inner(depth > 0 ? register_module("inner", std::make_shared<NestImpl>(depth - 1))
                        : nullptr) {}
  Tensor forward(const Tensor& x) {
    const auto y = linear(x);
    return inner ? inner->forward(y) : y;
  }
  nn::Linear linear;
  std::shared_ptr<NestImpl> inner;
};
SMP_MODULE(Nest);

// To look at the members of all running modules takes many times as long as such a module.
TEST(Tracer, DoesNotTimeTheLookAtWhatModulesKeep) {
  Nest net(15);
  const auto input = torch::ones({2, 8});
  const auto body = [&] { return std::vector{net(input)}; };
  const Described described(*net);
  const auto timed = [&](const simulate::Trace& seen) {
    double sum = seen.body_after.seconds;
    for (const auto& call : seen.calls) sum += call.before.seconds + call.after.seconds;
    return sum;
  };
  constexpr int kRepeats = 9;
  constexpr int kTries = 5;  // on a machine that does other things as well
  Tracer tracer({{&described.tree, &described.modules, &described.routed}}, 1);
  double least = std::numeric_limits<double>::max();
  for (int i = 0; i < kTries; ++i) {
    const double alone = timed(tracer.run({body}, kRepeats).at(0));
    const double watched = timed(tracer.run_and_watch_state({body}, kRepeats).at(0));
    least = std::min(least, watched / alone);
  }
  EXPECT_LT(least, 2);
}

TEST(Tracer, TellsWhichShareOfTheTimeWasSpentOnACore) {
  Block net;
  const auto share_of = [&](int milliseconds, int repeats) {
    return trace(
               *net,
               [&] {
                 std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
                 return std::vector{net(torch::ones({5, 8}))};
               },
               repeats)
        .processor_share;
  };
  EXPECT_LT(share_of(30, 2), .5);
  EXPECT_EQ(share_of(1, 0), 1) << "estimated from operators";
}

simulate::Trace trace_on(torch::nn::Module& model, const std::vector<std::string>& devices,
                         const Tracer::Body& body) {
  const Described described(model);
  Tracer tracer({{&described.tree, &described.modules, &described.routed}}, 1, devices);
  return tracer.run({body}, 0).at(0);
}

TEST(Tracer, PricesTheSameRunOnSeveralDevices) {
  Block net;
  const auto body = [&] { return std::vector{net(torch::ones({5, 8}))}; };
  const auto both = trace_on(*net, {"h100", "cpu"}, body);
  const auto cpu = trace(*net, body);
  const auto h100 = trace_on(*net, {"h100"}, body);
  EXPECT_EQ(both.device, "h100");
  ASSERT_EQ(both.profiles.size(), 1u);
  EXPECT_EQ(both.profiles[0].device, "cpu");
  EXPECT_TRUE(cpu.profiles.empty());
  for (int call = 0; call < 4; ++call) {
    const simulate::IntervalId id{call, false};
    const auto own = both.times_of(both.interval(id)), alone = h100.times_of(h100.interval(id));
    EXPECT_EQ(own.forward, alone.forward);
    EXPECT_EQ(own.backward, alone.backward);
    const auto& there = both.profiles[0].times.at(simulate::Trace::index_of(id));
    const auto here = cpu.times_of(cpu.interval(id));
    EXPECT_NEAR(there.forward / both.profiles[0].speed, here.forward, 1e-15);
    EXPECT_NEAR(there.backward / both.profiles[0].speed, here.backward, 1e-15);
    EXPECT_NEAR(there.weights / both.profiles[0].speed, here.weights, 1e-15);
  }
  EXPECT_GT(both.profiles[0].speed, 1) << "tiny operators: a core launches them sooner";
}

TEST(Tracer, SeesThatFrozenModulesHaveLessToDoInBackward) {
  Block net;
  const auto body = [&] { return std::vector{net(torch::ones({5, 8}))}; };
  const auto trained = trace(*net, body);
  for (auto& parameter : net->first->parameters()) parameter.requires_grad_(false);
  const auto frozen = trace(*net, body);
  EXPECT_GT(trained.calls[1].after.backward_seconds, 0);
  EXPECT_EQ(frozen.calls[1].after.backward_seconds, 0) << "nothing before it wants a gradient";
  EXPECT_LT(frozen.calls[3].after.backward_seconds, trained.calls[3].after.backward_seconds)
      << "the weights of the second still do, what is before it does not";
  EXPECT_EQ(frozen.calls[3].after.weight_seconds, frozen.calls[3].after.backward_seconds);
}

/// A function whose backward the user wrote: what it takes is known to nobody.
struct OwnSquare : torch::autograd::Function<OwnSquare> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context,
                                      const std::vector<Tensor>& gradients) {
    return {2 * context->get_saved_variables()[0] * gradients[0]};
  }
};

struct SquaringImpl : torch::nn::Module {
  SquaringImpl() : layer(register_module("layer", nn::Linear(8, 8))) {}
  Tensor forward(const Tensor& x) { return OwnSquare::apply(layer(x)); }
  nn::Linear layer;
};
SMP_MODULE(Squaring);

TEST(Tracer, LeavesTheBackwardOfAFunctionOfTheUsersToTheRatio) {
  Squaring net;
  const auto seen = trace(*net, [&] { return std::vector{net(torch::ones({5, 8}))}; });
  EXPECT_LT(seen.calls[0].after.backward_seconds, 0);
  EXPECT_EQ(seen.backward_of(seen.calls[0].after), 2 * seen.calls[0].after.seconds);
  EXPECT_GT(seen.calls[1].after.backward_seconds, 0);
}

TEST(Tracer, NamesTheModuleThatThrows) {
  fiber::Scheduler::install();
  Block net;
  const Described described(*net);
  Tracer tracer({{&described.tree, &described.modules, &described.routed}}, 1);
  EXPECT_THROW(tracer.run({[&] { return std::vector{net(torch::ones({5, 9}))}; }}, 0), c10::Error);
  EXPECT_EQ(tracer.failed_module(), "first");
  EXPECT_EQ(tracer.run({[&] {
                         return std::vector{net(torch::ones({5, 8}))};
                       }},
                       0)[0]
                .calls.size(),
            4);
  EXPECT_EQ(tracer.failed_module(), "");
}

// ---- weights of others -------------------------------------------------------------------------

struct ScaleImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, const Tensor& by) { return x * by.mean(); }
};
SMP_MODULE(Scale);

enum class Use { kNone, kReads, kReadsFrozen, kPasses };

struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : embed(register_module("embed", nn::Embedding(10, 4))),
        scale(register_module("scale", Scale())) {}
  Tensor forward(const Tensor& tokens, int use) {
    const auto x = embed(tokens);
    if (use == static_cast<int>(Use::kPasses)) return scale(x, embed->weight);
    if (use == static_cast<int>(Use::kNone)) return scale(x, x);
    return torch::matmul(x, embed->weight.t());
  }
  nn::Embedding embed;
  Scale scale;
};
SMP_MODULE(Tied);

std::vector<std::pair<int, int>> foreign_uses(Use use) {
  Tied net;
  if (use == Use::kReadsFrozen) net->embed->weight.requires_grad_(false);
  const auto tokens = torch::zeros({3}, torch::kLong);
  const auto seen = trace(*net, [&] { return std::vector{net(tokens, static_cast<int>(use))}; });
  std::vector<std::pair<int, int>> uses;
  for (const auto& use : seen.foreign_uses) uses.emplace_back(use.module, use.parameter);
  return uses;
}

TEST(Tracer, FindsModulesThatReadTheWeightsOfOthers) {
  EXPECT_TRUE(foreign_uses(Use::kNone).empty());
  EXPECT_THAT(foreign_uses(Use::kReads), ElementsAre(std::pair(0, 0)));
  EXPECT_THAT(foreign_uses(Use::kReadsFrozen), ElementsAre(std::pair(0, 0)));
  EXPECT_THAT(foreign_uses(Use::kPasses), ElementsAre(std::pair(0, 0), std::pair(2, 0)));
}

TEST(Tracer, FindsThatTheBodyReadsAWeight) {
  Tied net;
  const auto seen = trace(*net, [&] {
    return std::vector{net(torch::zeros({3}, torch::kLong), 0).sum() + net->embed->weight.norm()};
  });
  ASSERT_EQ(seen.foreign_uses.size(), 1);
  EXPECT_EQ(seen.foreign_uses[0].module, 0);
}

struct PlainImpl : torch::nn::Module {
  PlainImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  Tensor forward(const Tensor& x) { return linear(x); }
  torch::nn::Linear linear{nullptr};
};
SMP_MODULE(Plain);

TEST(Tracer, CountsAModuleThatIsNotRoutedForTheOneAboveIt) {
  Plain net;
  const auto seen = trace(*net, [&] { return std::vector{net(torch::ones({3, 4}))}; });
  EXPECT_THAT(modules_of(seen), ElementsAre(0));
  EXPECT_GT(seen.calls[0].after.seconds, 0);
  EXPECT_TRUE(seen.foreign_uses.empty());
}

// ---- no effects --------------------------------------------------------------------------------

struct WritesImpl : torch::nn::Module {
  WritesImpl()
      : norm(register_module("norm", nn::BatchNorm1d(4))),
        dropout(register_module("dropout", nn::Dropout(0.5))) {
    weight = register_parameter("weight", torch::full({4}, 3.0));
    counter = register_buffer("counter", torch::zeros({2, 3}).t());
  }
  Tensor forward(const Tensor& x) {
    counter.add_(1);
    weight.data().clamp_(-1, 1);
    return dropout(norm(x * weight) + torch::rand({4}));
  }
  Tensor weight, counter;
  nn::BatchNorm1d norm;
  nn::Dropout dropout;
};
SMP_MODULE(Writes);

TEST(Tracer, ChangesNothing) {
  Writes net;
  std::vector<Tensor> before, all = net->parameters();
  for (const auto& buffer : net->buffers()) all.push_back(buffer);
  for (const auto& tensor : all) before.push_back(tensor.detach().clone());
  torch::manual_seed(5);
  const auto expected = torch::rand({3});
  torch::manual_seed(5);
  for (const int repeats : {0, 2}) {
    trace(
        *net,
        [&] {
          return std::vector{net(torch::randn({6, 4}))};
        },
        repeats);
  }
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(torch::equal(all[i], before[i])) << i;
    EXPECT_FALSE(all[i].grad().defined());
  }
  EXPECT_FALSE(net->smp_place.placed());
  EXPECT_EQ(net->norm->smp_place.index, -1);
}

TEST(Tracer, PutsBackWhatWasWrittenBeforeAnException) {
  Writes net;
  EXPECT_THROW(trace(*net, [&] { return std::vector{net(torch::ones({6, 5}))}; }), c10::Error);
  EXPECT_EQ(net->counter.sum().item<double>(), 0);
  EXPECT_EQ(net->weight.max().item<double>(), 3);
}

}  // namespace
}  // namespace smp::partitioning
