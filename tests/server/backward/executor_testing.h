// tests/server/backward/executor_testing.h: graphs with cuts that answer late, and comparisons with
// LibTorch's own engine.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "server/backward/executor.h"

namespace smp::server::test {

using Tensors = std::vector<at::Tensor>;
using Body = std::function<Tensors(Tensors)>;

enum class Engine { kStock, kOurs };

/// How a cut answers.
struct Cut {
  int yields = 3;                 ///< how often its fiber gives way before it works
  const char* failure = nullptr;  ///< thrown instead of answering
};

/// Runs `body` behind a boundary: its backward runs on another fiber, as on another rank.
Tensors call_remotely(const Tensors& arguments, const Body& body, Cut cut = {});

/// `body(arguments)`, behind a cut if `remote`.
inline Tensors call(bool remote, const Tensors& arguments, const Body& body, Cut cut = {}) {
  return remote ? call_remotely(arguments, body, cut) : body(arguments);
}

/// Backward from `outputs`; undefined gradients mean ones.
void backward(Engine engine, const Tensors& outputs, Tensors gradients = {},
              BackwardOptions options = {}, BackwardStatistics* statistics = nullptr);
inline void backward(const at::Tensor& loss, BackwardOptions options = {}) {
  backward(Engine::kOurs, {loss}, {}, options);
}
Tensors grad(Engine engine, const Tensors& outputs, const Tensors& inputs,
             BackwardOptions options = {});

edge_list edges_of(const Tensors& tensors);

/// `count` leaves of shape [rows, columns] in float64 that depend on `seed` only.
Tensors leaves(int count, int seed = 1, int64_t rows = 4, int64_t columns = 4);
Tensors gradients_of(const Tensors& leaves);

/// Same definedness, type, shape and bytes.
bool same_bits(const at::Tensor& a, const at::Tensor& b);
bool same_bits(const Tensors& a, const Tensors& b);
/// Same definedness and shape, and values within `tolerance`.
bool close(const Tensors& a, const Tensors& b, double tolerance = 1e-9);

/// The text of what `body` throws, or "nothing was thrown".
std::string thrown_by(const std::function<void()>& body);

/// Lets other fibers run until none has anything left to do.
void let_other_fibers_finish();

/// Tests on a thread that has fibers; none of them outlives its test.
class WithFibers : public ::testing::Test {
 protected:
  void SetUp() override { fiber::Scheduler::install(); }
  void TearDown() override { let_other_fibers_finish(); }
};

}  // namespace smp::server::test
