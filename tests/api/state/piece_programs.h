// Programs of small modules that do what a test says, alone and over ranks, with promised outputs
// and without (docs/design.md, Promised outputs).
#pragma once

#include <gmock/gmock.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "api/far_model.h"
#include "api/two_ranks.h"

namespace smp::piece_programs {

using at::Tensor;

/// Does what the test says with its argument and its weight.
struct PieceImpl : torch::nn::Module {
  using Act = std::function<Tensor(PieceImpl&, const Tensor&)>;
  explicit PieceImpl(Act act)
      : weight(register_parameter("weight", torch::linspace(0.5, 1.5, 3, torch::kDouble))),
        act_(std::move(act)) {}
  Tensor forward(const Tensor& x) { return act_(*this, x); }
  std::pair<Tensor, Tensor> both(const Tensor& x, const Tensor& y) {
    return {act_(*this, x) + y, act_(*this, y)};
  }
  Tensor weight;

 private:
  Act act_;
};
SMP_MODULE(Piece, forward, both);

inline Tensor multiply(PieceImpl& self, const Tensor& x) { return (x * self.weight).tanh(); }
/// Saves neither x nor what it returns.
inline Tensor add(PieceImpl& self, const Tensor& x) { return x + self.weight; }

struct PiecesImpl : torch::nn::Module {
  explicit PiecesImpl(const std::vector<PieceImpl::Act>& acts) {
    for (std::size_t i = 0; i < acts.size(); ++i) {
      pieces.push_back(register_module("p" + std::to_string(i), Piece(acts[i])));
    }
  }
  std::vector<Piece> pieces;
};
TORCH_MODULE(Pieces);

struct Program {
  std::vector<PieceImpl::Act> acts;
  /// What the body makes of x [2, 3].
  std::function<Tensor(PiecesImpl& net, const Tensor& x)> body;
  bool backward = true;
};

using Results = std::map<std::string, Tensor>;
constexpr int kMicrobatches = 3;
constexpr int kSteps = 4;     // nothing is known of results in the first
inline int running_step = 0;  // of all ranks, and of the reference

inline void note(Results& results, const std::string& name, const Tensor& tensor) {
  if (tensor.defined()) results[name] = tensor.detach().clone();
}

inline Results run_alone(const Program& program) {
  Results results;
  Pieces net(program.acts);
  for (int step = 0; step < kSteps; ++step) {
    running_step = step;
    net->zero_grad();
    Tensor total = torch::zeros({}, torch::kDouble);
    for (const auto& x : rows(2 * kMicrobatches).chunk(kMicrobatches)) {
      const auto loss = program.body(*net, x.clone());
      if (program.backward) (loss / kMicrobatches).backward();
      total += loss.detach() / kMicrobatches;
    }
    note(results, "loss " + std::to_string(step), total);
    for (const auto& item : net->named_parameters()) {
      note(results, "grad " + std::to_string(step) + " " + item.key(), item.value().grad());
    }
  }
  return results;
}

/// Piece i lives on rank `ranks[i]`. Gathers what all ranks found.
/// @param at_end  run by each rank before its session ends
inline Results run_on(
    const std::vector<int>& ranks, const Program& program, bool promised, std::uint64_t seed = 1,
    const char* pipeline = "interleaved", const std::function<void()>& at_end = [] {}) {
  Results results;
  Config config;
  config.microbatches = kMicrobatches;
  config.plan_cache = "off";
  config.pipeline = pipeline;
  config.promised_outputs = promised;
  const int size = 1 + *std::max_element(ranks.begin(), ranks.end());
  run_local(size,
            [&] {
              Pieces net(program.acts);
              DistributedModel<Pieces> model(net);
              model.set_partition("", 0);
              for (std::size_t i = 0; i < ranks.size(); ++i) {
                model.set_partition("p" + std::to_string(i), ranks[i]);
              }
              auto train = smp::step([&](Tensor x) {
                auto loss = program.body(*net, x);
                if (program.backward) model.backward(loss);
                return loss.detach();
              });
              for (int step = 0; step < kSteps; ++step) {
                running_step = step;
                model.zero_grad();
                note(results, "loss " + std::to_string(step),
                     train(rows(2 * kMicrobatches)).reduce_mean());
                for (const auto& [name, parameter] : model.local_named_parameters()) {
                  note(results, "grad " + std::to_string(step) + " " + name, parameter.grad());
                }
              }
              at_end();
            },
            config, {.seed = seed});
  return results;
}

inline std::vector<std::string> names_of(const Results& results) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : results) names.push_back(name);
  return names;
}

inline void expect_close(const Results& ours, const Results& reference) {
  ASSERT_EQ(names_of(ours), names_of(reference));
  for (const auto& [name, tensor] : reference) {
    ASSERT_EQ(ours.count(name), 1u) << name;
    EXPECT_TRUE(at::allclose(ours.at(name), tensor, 1e-12, 1e-13)) << name << "\n"
                                                                   << ours.at(name) << "\n"
                                                                   << tensor;
  }
}

inline void expect_same_bits(const Results& ours, const Results& reference) {
  ASSERT_EQ(names_of(ours), names_of(reference));
  for (const auto& [name, tensor] : reference)
    EXPECT_TRUE(at::equal(ours.at(name), tensor)) << name;
}

inline void expect_as_alone(const Program& program,
                            const std::vector<std::vector<int>>& placements) {
  const auto reference = run_alone(program);
  for (const auto& ranks : placements) {
    for (const char* pipeline : {"simple", "interleaved", "1f1b", "zero_bubble"}) {
      const auto waiting = run_on(ranks, program, false, 1, pipeline);
      expect_close(waiting, reference);
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        SCOPED_TRACE(testing::Message()
                     << testing::PrintToString(ranks) << ", " << pipeline << ", seed " << seed);
        expect_same_bits(run_on(ranks, program, true, seed, pipeline), waiting);
      }
    }
  }
}

inline Tensor chain(PiecesImpl& net, Tensor x) {
  for (auto& piece : net.pieces) x = piece(x);
  return x;
}

}  // namespace smp::piece_programs
