// Modules with state: what they keep in members and buffers is what one process would find there,
// or refused by name.
#include <torch/nn/functional/activation.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "base/log.h"

namespace smp {
namespace module_state_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kWidth = 4;
constexpr int kSteps = 3;
constexpr int kMicrobatches = 4;

nn::Linear linear() { return nn::Linear(torch::nn::LinearOptions(kWidth, kWidth)); }

// ---- modules that keep something ---------------------------------------------------------------

/// A scratch tensor that its parent reads after the call.
struct ScratchImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    kept = a(x).tanh();
    return b(kept);
  }
  nn::Linear a = register_module("a", linear());
  nn::Linear b = register_module("b", linear());
  Tensor kept;
};
SMP_MODULE(Scratch);

struct ReadsScratchImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto y = block(x);
    y = head(y);
    return y + block->kept.sum();
  }
  Scratch block = register_module("block", Scratch());
  nn::Linear head = register_module("head", linear());
};
SMP_MODULE(ReadsScratch);

/// Skips in a list that is empty before and after, with calls of others in between.
struct UNetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    skips.clear();
    auto y = down1(x).tanh();
    skips.push_back(y);
    y = down2(y).tanh();
    skips.push_back(y);
    y = middle(y);
    y = up1(y + take());
    return up2(y * take());
  }
  Tensor take() {
    auto last = skips.back();
    skips.pop_back();
    return last;
  }
  nn::Linear down1 = register_module("down1", linear());
  nn::Linear down2 = register_module("down2", linear());
  nn::Linear middle = register_module("middle", linear());
  nn::Linear up1 = register_module("up1", linear());
  nn::Linear up2 = register_module("up2", linear());
  std::vector<Tensor> skips;
};
SMP_MODULE(UNet);

/// Its outputs depend on how often it was called.
struct CountingImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    ++calls;
    return inner(x) * (1.0 + 0.1 * calls);
  }
  nn::Linear inner = register_module("inner", linear());
  int calls = 0;
};
SMP_MODULE(Counting);

/// Calls it twice, with others around it.
struct CountsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return counter(last(counter(first(x)).tanh())); }
  nn::Linear first = register_module("first", linear());
  Counting counter = register_module("counter", Counting());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(Counts);

/// A loss of its own, in a vector of constant length: only the element changes.
struct MoeImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto weights = torch::softmax(gate(x), 1);
    aux.clear();
    aux.push_back(weights.mean(0).pow(2).sum());
    return one(x) * weights + two(x) * (1 - weights);
  }
  nn::Linear gate = register_module("gate", linear());
  nn::Linear one = register_module("one", linear());
  nn::Linear two = register_module("two", linear());
  std::vector<Tensor> aux;
};
SMP_MODULE(Moe);

struct MoeNetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto y = head(moe(x));
    return parent_reads ? y + moe->aux[0] : y;
  }
  Moe moe = register_module("moe", Moe());
  nn::Linear head = register_module("head", linear());
  bool parent_reads = false;
};
SMP_MODULE(MoeNet);

/// Memory from call to call, microbatch to microbatch and step to step.
struct HiddenImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto now = in(x).mean(0);
    if (hidden.defined()) now = now + across(hidden);
    hidden = now.tanh();
    return x + hidden;
  }
  nn::Linear in = register_module("in", linear());
  nn::Linear across = register_module("across", linear());
  Tensor hidden;
};
SMP_MODULE(Hidden);

struct RecurrentImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return head(cell(cell(x))); }
  Hidden cell = register_module("cell", Hidden());
  nn::Linear head = register_module("head", linear());
};
SMP_MODULE(Recurrent);

struct EmaImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto y = inner(x);
    {
      const torch::NoGradGuard no_grad;
      mean.mul_(0.9).add_(y.mean(0), 0.1);
    }
    return y - mean.clone();
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor mean = register_buffer("mean", torch::zeros({kWidth}));
};
SMP_MODULE(Ema);

/// Moves the nearest entries of a codebook towards what it sees; passes gradients straight through.
struct VqImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto code = torch::cdist(x.detach(), codebook).argmin(1);
    const auto entries = codebook.index_select(0, code);
    {
      const torch::NoGradGuard no_grad;
      codebook.index_add_(0, code, 0.1 * (x.detach() - entries));
    }
    return x + (entries - x).detach();
  }
  Tensor codebook =
      register_buffer("codebook", torch::linspace(-1, 1, 3 * kWidth).reshape({3, kWidth}));
};
SMP_MODULE(Vq);

struct BuffersImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(vq(ema(first(x)))) + ema->inner(x); }
  nn::Linear first = register_module("first", linear());
  Ema ema = register_module("ema", Ema());
  Vq vq = register_module("vq", Vq());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(Buffers);

/// A table that the first call makes.
struct MaskedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (!mask.defined()) mask = torch::ones({kWidth}, x.options()).cumsum(0) / kWidth;
    return inner(x * mask);
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor mask;
};
SMP_MODULE(Masked);

struct MasksImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return two(one(x).tanh()); }
  Masked one = register_module("one", Masked());
  Masked two = register_module("two", Masked());
};
SMP_MODULE(Masks);

/// Names what it keeps: after the first call the map itself stays as it is.
struct NamingImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    features["hidden"] = a(x).tanh();
    return b(features["hidden"]);
  }
  nn::Linear a = register_module("a", linear());
  nn::Linear b = register_module("b", linear());
  std::map<std::string, Tensor> features;
};
SMP_MODULE(Naming);

struct ReadsFeaturesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto y = head(block(x));
    return y + block->features.at("hidden").sum();
  }
  Naming block = register_module("block", Naming());
  nn::Linear head = register_module("head", linear());
};
SMP_MODULE(ReadsFeatures);

/// An object that one module writes and another reads; neither is above the other.
struct Notes {
  Tensor hidden;
};

struct WriterImpl : torch::nn::Module {
  explicit WriterImpl(std::shared_ptr<Notes> notes) : notes(std::move(notes)) {}
  Tensor forward(const Tensor& x) {
    notes->hidden = inner(x).tanh();
    return notes->hidden * 2;
  }
  nn::Linear inner = register_module("inner", linear());
  std::shared_ptr<Notes> notes;
};
SMP_MODULE(Writer);

struct ReaderImpl : torch::nn::Module {
  explicit ReaderImpl(std::shared_ptr<Notes> notes) : notes(std::move(notes)) {}
  Tensor forward(const Tensor& x) { return inner(x) + notes->hidden; }
  nn::Linear inner = register_module("inner", linear());
  std::shared_ptr<Notes> notes;
};
SMP_MODULE(Reader);

struct PassesNotesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return reader(middle(writer(x))); }
  std::shared_ptr<Notes> notes = std::make_shared<Notes>();
  Writer writer = register_module("writer", Writer(notes));
  nn::Linear middle = register_module("middle", linear());
  Reader reader = register_module("reader", Reader(notes));
};
SMP_MODULE(PassesNotes);

/// A tensor that is no buffer, written in place: the object's own bytes stay as they are.
struct AveragesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    average.mul_(0.5).add_(x.detach().mean(0));
    return inner(x - average);
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor average = torch::zeros({kWidth}, torch::kDouble);
};
SMP_MODULE(Averages);

struct AveragedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(average(first(x)).tanh()); }
  nn::Linear first = register_module("first", linear());
  Averages average = register_module("average", Averages());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(Averaged);

/// Not routed, with a memory.
struct PlainImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    last = last.defined() ? (last * 0.5 + x.detach().mean(0)) : x.detach().mean(0);
    return x + last;
  }
  Tensor last;
};
TORCH_MODULE(Plain);

struct HoldsPlainImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return two(plain(one(x))); }
  nn::Linear one = register_module("one", linear());
  Plain plain = register_module("plain", Plain());
  nn::Linear two = register_module("two", linear());
};
SMP_MODULE(HoldsPlain);

/// The model itself is not routed, and has a memory.
struct PlainRootImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    ++calls;
    return two(one(x).tanh()) * (remembers ? calls : 1);
  }
  nn::Linear one = register_module("one", linear());
  nn::Linear two = register_module("two", linear());
  bool remembers = false;
  int calls = 0;
};
TORCH_MODULE(PlainRoot);

// ---- against plain LibTorch --------------------------------------------------------------------

template <class Net>
struct Program {
  using Forward = std::function<Tensor(const Tensor&)>;
  std::function<Tensor(Net&, const Forward&, const Tensor&)> loss =
      [](Net&, const Forward& forward, const Tensor& x) { return forward(x).pow(2).mean(); };
  std::function<void(Net&)> after_backward = [](Net&) {};
  std::function<void(Net&)> setup = [](Net&) {};

  Net make() const {
    torch::manual_seed(11);
    Net net;
    net->to(torch::kDouble);
    setup(net);
    return net;
  }
};

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, Tensor> tensors;
};

Tensor batch(int step) {
  return torch::sin(torch::arange(8 * kWidth, torch::kDouble) * 0.37 + step).reshape({8, kWidth});
}

template <class Net>
Outcome in_one_process(const Program<Net>& program) {
  Outcome outcome;
  auto net = program.make();
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    double mean = 0;
    for (const auto& x : batch(s).tensor_split(kMicrobatches)) {
      const auto loss = program.loss(
          net, [&](const Tensor& in) { return net(in); }, x);
      mean += loss.template item<double>() / kMicrobatches;
      (loss / kMicrobatches).backward();
      program.after_backward(net);
    }
    outcome.losses.push_back(mean);
    for (const auto& item : net->named_parameters()) {
      outcome.tensors[std::to_string(s) + item.key()] = item.value().grad().clone();
    }
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) outcome.tensors[item.key()] = item.value();
  for (const auto& item : net->named_buffers()) outcome.tensors[item.key()] = item.value();
  return outcome;
}

/// @param pins  modules by hand
template <class Net>
Outcome on_this_rank(const Program<Net>& program, const std::map<std::string, int>& pins = {}) {
  Outcome outcome;
  auto net = program.make();
  DistributedModel model(net);
  for (const auto& [path, stage] : pins) model.set_partition(path, stage);
  DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.05));
  auto train = smp::step([&](const Tensor& x) {
    const auto loss = program.loss(
        net, [&](const Tensor& in) { return model(in); }, x);
    model.backward(loss);
    program.after_backward(net);
    return loss;
  });
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    outcome.losses.push_back(train(batch(s)).reduce_mean().template item<double>());
    for (const auto& [name, parameter] : model.local_named_parameters()) {
      outcome.tensors[std::to_string(s) + name] = parameter.grad().clone();
    }
    optimizer.step();
  }
  for (const auto& [name, tensor] : model.local_named_parameters()) outcome.tensors[name] = tensor;
  for (const auto& [name, tensor] : model.local_named_buffers()) outcome.tensors[name] = tensor;
  return outcome;
}

void expect_equal(const Outcome& ours, const Outcome& reference) {
  ASSERT_EQ(ours.losses.size(), reference.losses.size());
  for (std::size_t i = 0; i < ours.losses.size(); ++i) {
    EXPECT_NEAR(ours.losses[i], reference.losses[i], 1e-12) << "loss of step " << i;
  }
  for (const auto& [name, tensor] : ours.tensors) {
    ASSERT_TRUE(reference.tensors.count(name)) << name;
    EXPECT_LE((tensor - reference.tensors.at(name)).abs().max().item<double>(), 1e-12) << name;
  }
}

Config config_of(const std::string& pipeline) {
  Config config;
  config.microbatches = kMicrobatches;
  config.plan_cache = "off";
  config.pipeline = pipeline;
  config.partition_strategy = "tree";
  return config;
}

template <class Net>
void expect_as_in_one_process(const Program<Net>& program = {},
                              const std::map<std::string, int>& pins = {}, int most_ranks = 4,
                              bool trial = true) {
  const auto reference = in_one_process(program);
  for (int ranks = pins.empty() ? 1 : most_ranks; ranks <= most_ranks; ++ranks) {
    for (const char* pipeline : {"simple", "interleaved"}) {
      for (const std::uint64_t seed : {1, 2, 3}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << pipeline << ", seed " << seed);
        auto config = config_of(pipeline);
        config.skip_tracing = !trial;
        run_local(ranks, [&] { expect_equal(on_this_rank(program, pins), reference); }, config,
                  {.seed = seed, .mean_delay = 1e-4});
      }
    }
  }
}

TEST(ModuleState, AScratchTensorThatTheParentReads) { expect_as_in_one_process<ReadsScratch>(); }
TEST(ModuleState, SkipsInAList) { expect_as_in_one_process<UNet>(); }
TEST(ModuleState, AMemoryInAPartThatIsNotRouted) { expect_as_in_one_process<HoldsPlain>(); }
TEST(ModuleState, AMapOfWhatItKept) { expect_as_in_one_process<ReadsFeatures>(); }
TEST(ModuleState, AnObjectThatTwoModulesShare) { expect_as_in_one_process<PassesNotes>(); }
TEST(ModuleState, ATensorWrittenInPlace) { expect_as_in_one_process<Averaged>(); }
TEST(ModuleState, ACounter) { expect_as_in_one_process<Counts>(); }

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

// ---- what a program says -----------------------------------------------------------------------

struct OrderedImpl : CountingImpl {};

/// Writes a member that changes no result.
struct PrivateImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    ++calls;
    return inner(x);
  }
  nn::Linear inner = register_module("inner", linear());
  int calls = 0;
};

}  // namespace module_state_test

template <>
inline constexpr bool ordered_state_v<module_state_test::OrderedImpl> = true;
template <>
inline constexpr bool private_state_v<module_state_test::PrivateImpl> = true;

namespace module_state_test {

SMP_MODULE(Ordered);
SMP_MODULE(Private);

struct OrderedNetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(counter(first(x))); }
  nn::Linear first = register_module("first", linear());
  Ordered counter = register_module("counter", Ordered());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(OrderedNet);

struct PrivateNetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return part(x); }
  Private part = register_module("part", Private());
};
SMP_MODULE(PrivateNet);

TEST(ModuleState, OrderedStateLivesAnywhere) {
  const std::map<std::string, int> pins = {{"", 0}, {"first", 2}, {"counter", 1}, {"last", 2}};
  expect_as_in_one_process<OrderedNet>({}, pins, 3);
  expect_as_in_one_process<OrderedNet>({}, pins, 3, false);
}

TEST(ModuleState, PrivateStateIsFree) {
  expect_as_in_one_process<PrivateNet>({}, {{"", 0}, {"part", 1}}, 2);
  expect_as_in_one_process<PrivateNet>({}, {{"", 0}, {"part", 1}}, 2, false);
}

// ---- refusals ----------------------------------------------------------------------------------

TEST(ModuleState, APinAwayFromTheReadersIsRefused) {
  on_ranks(2, [] {
    const auto text = refusal<Error>([] { on_this_rank<Counts>({}, {{"", 0}, {"counter", 1}}); });
    EXPECT_THAT(text, AllOf(HasSubstr("counter"), HasSubstr("its members, from byte"),
                            HasSubstr("smp::ordered_state_v")));
  });
}

TEST(ModuleState, StateFarAwayThatNoTrialShowedIsRefused) {
  auto config = config_of("interleaved");
  config.skip_tracing = true;
  run_local(
      2,
      [] {
        const auto text = refused_step<UnsupportedError>(1, [] {
          on_this_rank<Counts>({}, {{"", 0}, {"counter", 1}});
        });
        EXPECT_THAT(text, AllOf(HasSubstr("rank 1, module 'counter' "), HasSubstr("CountingImpl"),
                                HasSubstr("writes its members in forward: microbatches 0 and"),
                                HasSubstr("at byte"), HasSubstr("smp::private_state_v")));
      },
      config);
}

// ---- the plan ----------------------------------------------------------------------------------

template <class Net>
PartitionPlan plan_of_net(int ranks) {
  PartitionPlan plan;
  run_local(
      ranks,
      [&] {
        auto net = Program<Net>().make();
        DistributedModel model(net);
        auto evaluate = smp::step([&](const Tensor& x) { return model(x); });
        evaluate(batch(0));
        plan = model.plan();
      },
      config_of("interleaved"));
  return plan;
}

TEST(ModuleState, ThePlanSaysWhatIsKeptAndWhatItCosts) {
  const auto plan = plan_of_net<Counts>(2);
  EXPECT_EQ(plan.stage_of("counter"), 0);
  EXPECT_THAT(plan.table(), AllOf(HasSubstr("the forward of counter writes its members"),
                                  HasSubstr("one microbatch at a time")));
  const auto masks = plan_of_net<Masks>(2);
  EXPECT_THAT(masks.table(), Not(HasSubstr("state:")));
}

TEST(ModuleState, BuffersOfItsOwnDoNotTieAModule) {
  const auto plan = plan_of_net<Buffers>(2);
  EXPECT_THAT(plan.table(), AllOf(HasSubstr("the forward of vq writes 'codebook'"),
                                  HasSubstr("microbatches run one after the other"),
                                  Not(HasSubstr("one microbatch at a time"))));
}

// ---- the trial leaves no trace -----------------------------------------------------------------

TEST(Trial, ChangesNothingOfTheUsers) {
  int bodies = 0;
  on_ranks(2, [&] {
    auto net = Program<Counts>().make();
    DistributedModel model(net);
    auto evaluate = smp::step([&](const Tensor& x) {
      ++bodies;
      return model(x);
    });
    model.eval();
    evaluate(batch(0));
    if (rank() == 0) EXPECT_EQ(net->counter->calls, 4);  // two microbatches, twice
  });
  EXPECT_EQ(bodies, 2);
}

/// What the log says if the body does this in its trial; the step itself goes well.
std::string log_of_trial(const std::function<void()>& harm, double abort_seconds = 600) {
  const base::LogCapture log;
  Config config = config_of("interleaved");
  config.abort_seconds = abort_seconds;
  run_local(
      2,
      [&] {
        DistributedModel model(Program<Masks>().make());
        auto evaluate = smp::step([&](const Tensor& x) {
          if (is_tracing()) harm();
          return model(x);
        });
        for (int i = 0; i < 2; ++i) evaluate(batch(i));
      },
      config);
  return log.text();
}

TEST(Trial, ThatCrashesIsSaidAndModulesAreCounted) {
  EXPECT_THAT(log_of_trial([] { std::raise(SIGSEGV); }),
              AllOf(HasSubstr("so modules are counted instead"), HasSubstr("ended by signal 11")));
}

TEST(Trial, ThatExitsIsSaid) {
  EXPECT_THAT(log_of_trial([] { std::exit(0); }),
              AllOf(HasSubstr("so modules are counted instead"), HasSubstr("its trial process")));
}

TEST(Trial, ThatHangsEnds) {
  EXPECT_THAT(log_of_trial([] { ::pause(); }, 2), HasSubstr("did not end within 1 s"));
}

TEST(Trial, ThatThrowsIsSaid) {
  EXPECT_THAT(log_of_trial([] { throw std::runtime_error("no trial, please"); }),
              AllOf(HasSubstr("the step's body threw: "), HasSubstr("no trial, please")));
}

}  // namespace module_state_test
}  // namespace smp
