// Gradients that modules add by themselves, and gradients of arguments, where layers are sliced:
// with samples of their own and with prescaled batches, in pipelines and replicas of both.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/added_gradients.h"
#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace added_gradients_test {

constexpr int kWidth = 8;
constexpr int kParts = 2;  // microbatches

/// Layers around a gate that is no distributed module.
template <class Layers>
struct NetImpl : torch::nn::Module {
  NetImpl(Adding way, AddedWeight weight)
      : first(register_module("first", typename Layers::Linear(kWidth, kWidth))),
        gate(register_module("gate", Gate(way, std::move(weight), kWidth))),
        last(register_module("last", typename Layers::Linear(kWidth, 4))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return last(gate(first(x))); }
  typename Layers::Linear first;
  Gate gate;
  typename Layers::Linear last;
};
using SlicedNetImpl = NetImpl<SlicedLayers>;
SMP_MODULE(SlicedNet);

struct Layout {
  Adding way;
  std::string loss = "mean";
  int tp = 2, rdp = 1, pp = 1;
  bool prescaled = false;
  bool shard = false;

  int ranks() const { return tp * rdp * pp; }
  int batches() const { return prescaled ? rdp : rdp * tp; }
  bool asks() const { return loss != "sum"; }
};

void PrintTo(const Layout& run, std::ostream* out) {
  *out << name_of(run.way) << ", loss " << run.loss << ", tp " << run.tp << ", rdp " << run.rdp
       << ", pp " << run.pp << (run.prescaled ? ", prescaled" : "")
       << (run.shard ? ", sharded" : "");
}

at::Tensor batch(int number) {
  return at::sin(at::arange(4 * kWidth, at::kDouble) * 0.7 + number).view({4, kWidth});
}

at::Tensor loss_of(const at::Tensor& y, const std::string& loss) {
  return loss == "sum" ? y.square().sum() : y.square().mean();
}

/// A hook of a slice runs once for the microbatches of all ranks that share it.
void hook_slice(const at::Tensor& slice, const AddedWeight& weight) {
  slice.register_hook([own = slice.detach(), weight](const at::Tensor& gradient) {
    return gradient + gradient_of_penalty(own) * weight();
  });
}

struct Reference {
  std::map<std::string, at::Tensor> gradients;
  std::vector<at::Tensor> of_arguments;  ///< by batch
};

Reference reference(const Layout& run) {
  torch::manual_seed(3);
  NetImpl<PlainLayers> net(Adding::kNone, [] { return 1.0; });
  const double weight = run.loss == "sum" ? 1.0 : 1.0 / (run.batches() * kParts);
  Reference all;
  double added = 0;
  for (int b = 0; b < run.batches(); ++b) {
    const auto x = batch(b).requires_grad_();
    for (const auto& part : x.chunk(kParts)) {
      (loss_of(net.forward(part), run.loss) * weight).backward();
      added += run.asks() ? weight : 1.0;
    }
    all.of_arguments.push_back(x.grad());
  }
  if (run.way != Adding::kNone) (penalty_of(net.gate->w) * added).backward();
  (penalty_of(net.last->weight) * added).backward();
  for (const auto& item : net.named_parameters()) all.gradients[item.key()] = item.value().grad();
  return all;
}

void expect_close(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(at::allclose(got, expected, 1e-12, 1e-13)) << what << " on rank " << rank() << "\n"
                                                         << got << expected;
}

void expect_as_in_one_process(const Layout& run) {
  SCOPED_TRACE(testing::PrintToString(run));
  const auto expected = reference(run);
  Config config;
  config.tensor_parallel_degree = run.tp;
  config.pipeline_parallel_degree = run.pp;
  config.microbatches = kParts;
  config.prescaled_batch = run.prescaled;
  config.shard_optimizer_state = run.shard;
  config.loss = run.loss;
  config.plan_cache = "off";
  config.skip_tracing = true;  // takes what an own backward adds to .grad for state of the module
  std::set<std::string> seen;
  run_local(run.ranks(),
            [&] {
              torch::manual_seed(3);
              const auto weight =
                  run.asks() ? AddedWeight(microbatch_weight) : AddedWeight([] { return 1.0; });
              SlicedNet net(run.way, weight);
              const int shares = run.prescaled ? 1 : tp_size();
              hook_slice(net->last->weight, [=] { return weight() * shares; });
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("gate", run.pp - 1);
              const DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto train =
                  step([&](const at::Tensor& x) { model.backward(loss_of(model(x), run.loss)); });
              const auto x = batch(data_shard().index).requires_grad_();
              train(x);
              if (pp_rank() == 0) {
                expect_close(x.grad(),
                             expected.of_arguments[static_cast<std::size_t>(data_shard().index)],
                             "argument");
              }
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                if (!parameter.grad().defined()) continue;
                auto whole = expected.gradients.at(name);
                if (model.is_distributed_parameter(parameter)) {
                  whole = whole.chunk(tp_size(), 1)[static_cast<std::size_t>(tp_rank())];
                }
                expect_close(parameter.grad(), whole, name);
                seen.insert(name);
              }
            },
            config, {1});
  EXPECT_EQ(seen.size(), expected.gradients.size());
}

class SlicedAddedGradients : public testing::TestWithParam<Adding> {};

TEST_P(SlicedAddedGradients, EqualOneProcess) {
  for (const bool prescaled : {false, true}) {
    for (const auto* loss : {"mean", "sum"}) {
      expect_as_in_one_process({GetParam(), loss, 2, 1, 1, prescaled});
      expect_as_in_one_process({GetParam(), loss, 2, 2, 1, prescaled});
      expect_as_in_one_process({GetParam(), loss, 2, 1, 2, prescaled});
      expect_as_in_one_process({GetParam(), loss, 2, 2, 2, prescaled, true});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, SlicedAddedGradients, testing::ValuesIn(kAddings),
                         [](const auto& info) {
                           auto name = name_of(info.param);
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

}  // namespace added_gradients_test
}  // namespace smp::tp
