// api/replicas/early_gradients_testing.h: programs whose gradients replicas may add up while a step
// runs.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "api/replicas/replicas.h"
#include "zoo/zoo.h"

namespace smp::zoo {
namespace early_gradients_testing {

inline constexpr int kSteps = 6;

/// 3 -> 1, with two branches on the second stage, if there is one. Float64.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl()
      : first(register_module("first", nn::Linear(3, 16))),
        second(register_module("second", nn::Linear(16, 16))),
        third(register_module("third", nn::Linear(16, 16))),
        rare(register_module("rare", nn::Linear(16, 16))),
        last(register_module("last", nn::Linear(16, 1))),
        unused(register_module("unused", nn::Linear(4, 4))) {
    to(torch::kDouble);
  }
  /// `rare` takes part if it is asked for.
  Tensor forward(const Tensor& x, bool with_rare) {
    auto y = torch::tanh(second(torch::tanh(first(x))));
    y = with_rare ? third(y) + rare(y) : third(y);
    return last(torch::tanh(y));
  }
  nn::Linear first, second, third, rare, last, unused;
};
SMP_MODULE(Branches);

inline Branches make_branches() {
  torch::manual_seed(3);
  return Branches();
}

inline Tensor rows_of(int step, int replica) { return numbers(100 * step + replica, {6, 3}); }

struct Replica;

/// How replicas train; what a rank does beside the usual things.
struct Program {
  int stages = 1;
  int replicas = 2;  ///< where they are not as many as there are processes for
  int microbatches = 3;
  std::function<bool(int step, int replica)> with_rare = [](int, int) { return true; };
  std::function<void(Replica&)> prepare;
  std::function<void(Replica&, int step)> before_step;
  std::function<void(Replica&, int step, const Tensor& loss)> backward;
  std::function<bool(int step)> zero_grad = [](int) { return true; };
  std::function<bool(int step)> update = [](int) { return true; };  ///< optimizer.step() follows
  std::set<int> failing;                                            // steps
  std::function<void(Config&)> configure;
};

/// One rank.
struct Replica {
  Replica(const Program& of, int& current)
      : program(of),
        step(current),
        net(make_branches()),
        model(net),
        optimizer(model, torch::optim::SGD(net->parameters(),
                                           torch::optim::SGDOptions(0.05).momentum(0.5))) {
    if (program.stages < 2) return;
    for (const auto* name : {"second", "third", "rare"}) model.set_partition(name, 1);
  }
  void train() {
    auto body = smp::step([&](Tensor x) {
      auto loss = model(x, program.with_rare(step, dp_rank())).pow(2).mean();
      program.backward ? program.backward(*this, step, loss) : model.backward(loss);
      return loss;
    });
    body(rows_of(step, dp_rank()));
  }
  const Program& program;
  int& step;
  Branches net;
  DistributedModel<Branches> model;
  DistributedOptimizer<torch::optim::SGD> optimizer;
};

/// By rank and name, what is in the end of each step.
struct Outcome {
  std::map<std::string, Tensor> gradients, values;
  std::uint64_t early = 0;  ///< buckets, of all ranks
};

inline Config config_of(const Program& program, bool overlap, double bucket_mb) {
  Config config;
  config.pipeline_parallel_degree = program.stages;
  config.microbatches = program.microbatches;
  config.auto_partition = false;
  config.default_partition = 0;
  config.bucket_cap_mb = bucket_mb;
  config.overlapping_allreduce = overlap;
  if (program.configure) program.configure(config);
  return config;
}

/// What one rank does, in a session of its own.
inline void train_rank(const Program& program, Outcome& outcome) {
  int step = 0;
  Replica replica(program, step);
  if (program.prepare) program.prepare(replica);
  for (; step < kSteps; ++step) {
    if (program.zero_grad(step)) replica.optimizer.zero_grad();
    if (program.before_step) program.before_step(replica, step);
    const auto where = std::to_string(rank()) + " step " + std::to_string(step) + " ";
    if (program.failing.count(step) > 0) {
      EXPECT_THROW(replica.train(), std::exception) << where;
      replica.optimizer.zero_grad();
      continue;
    }
    replica.train();
    for (const auto& [name, parameter] : replica.model.local_named_parameters()) {
      const auto& gradient = parameter.grad();
      outcome.gradients[where + name] = gradient.defined() ? gradient.clone() : Tensor();
    }
    if (program.update(step)) replica.optimizer.step();
  }
  for (const auto& [name, parameter] : replica.model.local_named_parameters()) {
    outcome.values[std::to_string(rank()) + " " + name] = parameter.detach().clone();
  }
  outcome.early += Replicas::current().gradients().averaged_early();
}

inline void expect_same(const std::map<std::string, Tensor>& own,
                        const std::map<std::string, Tensor>& expected) {
  ASSERT_EQ(own.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const auto& other = own.at(name);
    ASSERT_EQ(other.defined(), tensor.defined()) << name;
    if (tensor.defined()) {
      EXPECT_TRUE(at::equal(other.to_dense(), tensor.to_dense())) << name;
    }
  }
}

/// In the middle of the last microbatch's backward of all replicas but the first, when others may
/// wait for it. `throws_left` is of each rank, and outlives the run.
inline void fail_in_last_backward(Program& program, std::vector<int>& throws_left,
                                  std::set<int> steps) {
  program.failing = std::move(steps);
  program.before_step = [&](Replica&, int step) {
    throws_left[static_cast<std::size_t>(rank())] =
        program.failing.count(step) > 0 ? program.microbatches : 0;
  };
  program.prepare = [&](Replica& replica) {
    replica.model.place();
    if (dp_rank() == 0) return;
    for (const auto& [name, parameter] : replica.model.local_named_parameters()) {
      if (name != "first.weight") continue;  // the last that gets a gradient
      parameter.register_hook(
          [&left = throws_left[static_cast<std::size_t>(rank())]](const Tensor& gradient) {
            if (left > 0 && --left == 0) throw std::out_of_range("planted");
            return gradient;
          });
    }
  };
}

}  // namespace early_gradients_testing
}  // namespace smp::zoo
