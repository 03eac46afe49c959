// Primitives of tensor parallelism on 2 and 4 ranks: values, gradients against central differences
// in float64, what is sent, and microbatches in other orders on each rank.
#include "smp/tp/primitives.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <random>

#include "smp/error.h"
#include "support/refusal.h"
#include "tp/group/exchange.h"
#include "tp/tp_group.h"

namespace smp::tp {
namespace primitives_test {

using testing::AllOf;
using testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using Primitive = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor input_of(int rank, at::IntArrayRef sizes) {
  const auto numbers = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return at::sin(numbers * 0.37 + rank * 1.7).reshape(sizes);
}

Tensors inputs(int ranks, at::IntArrayRef sizes) {
  Tensors all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(input_of(rank, sizes));
  return all;
}

/// What every rank gets.
Tensors outputs_of(const Primitive& primitive, const Tensors& inputs, std::uint64_t seed = 1) {
  const auto size = static_cast<int>(inputs.size());
  d2d::SimulatedJob job(size, seed);
  Tensors outputs(inputs.size());
  on_group(job, size, [&](int rank) {
    const auto place = static_cast<std::size_t>(rank);
    outputs[place] = primitive(inputs[place]);
  });
  return outputs;
}

// ---- values ----

class OnRanks : public testing::TestWithParam<int> {
 protected:
  const int size = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Primitives, OnRanks, testing::Values(1, 2, 4));

TEST_P(OnRanks, AllgatherJoinsAlongAnyDimension) {
  const auto all = inputs(size, {2, 3, 4});
  for (const std::int64_t dim : {0, 1, 2, -1}) {
    for (const auto& joined :
         outputs_of([&](const auto& x) { return fused_allgather_for_tp(x, dim); }, all)) {
      EXPECT_TRUE(at::equal(joined, at::cat(all, dim))) << "along " << dim;
    }
  }
}

TEST_P(OnRanks, ReduceScatterGivesPartsOfTheSum) {
  const auto all = inputs(size, {4, 3, 8});
  auto sum = all[0].clone();
  for (int rank = 1; rank < size; ++rank) sum += all[static_cast<std::size_t>(rank)];
  for (const std::int64_t dim : {0, 2, -1}) {
    const auto parts =
        outputs_of([&](const auto& x) { return reduce_scatter_for_tp(x, dim); }, all);
    EXPECT_TRUE(at::equal(at::cat(parts, dim), sum)) << "along " << dim;
    EXPECT_EQ(parts[0].size(dim) * size, sum.size(dim));
  }
}

TEST_P(OnRanks, ScatterAndMergeTransposesOwnership) {
  const auto all = inputs(size, {4, 3, 8});
  for (const auto& [split, merge] :
       std::vector<std::pair<int, int>>{{0, 0}, {0, 1}, {0, -1}, {2, 0}, {-1, 1}, {2, 2}}) {
    const auto merged =
        outputs_of([&](const auto& x) { return scatter_and_merge_for_tp(x, split, merge); }, all);
    for (int rank = 0; rank < size; ++rank) {
      Tensors parts;
      for (const auto& input : all) {
        parts.push_back(input.chunk(size, split)[static_cast<std::size_t>(rank)]);
      }
      EXPECT_TRUE(at::equal(merged[static_cast<std::size_t>(rank)], at::cat(parts, merge)))
          << split << " to " << merge << " on rank " << rank;
    }
  }
}

TEST_P(OnRanks, PartsAreJoinedAgain) {
  const auto all = inputs(size, {4, 3, 8});
  for (const std::int64_t dim : {0, 2, -1}) {
    const Tensors same(all.size(), all[0]);
    const auto parts = outputs_of([&](const auto& x) { return own_part_for_tp(x, dim); }, same);
    EXPECT_TRUE(at::equal(at::cat(parts, dim), all[0])) << "along " << dim;
    for (const auto& joined :
         outputs_of([&](const auto& x) { return join_parts_for_tp(x, dim); }, parts)) {
      EXPECT_TRUE(at::equal(joined, all[0])) << "along " << dim;
    }
  }
}

TEST_P(OnRanks, SumsAndCopies) {
  const auto all = inputs(size, {3, 2});
  auto sum = all[0].clone();
  for (int rank = 1; rank < size; ++rank) sum += all[static_cast<std::size_t>(rank)];
  for (const auto& reduced : outputs_of(fwd_allreduce_for_tp, all)) {
    EXPECT_TRUE(at::equal(reduced, sum));
  }
  const auto same = outputs_of(bwd_allreduce_for_tp, all);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(at::equal(same[i], all[i]));
}

TEST_P(OnRanks, WholeNumbersMoveWithoutHistory) {
  d2d::SimulatedJob job(size);
  on_group(job, size, [&](int rank) {
    const auto indices = at::arange(6, at::kLong).view({2, 3}) + rank;
    EXPECT_EQ(fused_allgather_for_tp(indices, 0).sizes(), at::IntArrayRef({2 * size, 3}));
    EXPECT_FALSE(fused_allgather_for_tp(indices, 0).requires_grad());
    const auto leaf = at::ones({4 * size}, at::kDouble).requires_grad_();
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(reduce_scatter_for_tp(leaf, 0).requires_grad() && size > 1);
  });
}

// ---- gradients ----

/// What each rank computes around a primitive, and how its output counts: in one loss that is the
/// sum over ranks, or where all ranks have the same, once.
struct Differentiated {
  const char* name;
  Primitive primitive;
  std::vector<std::int64_t> input;
  bool same_input = false;   ///< every rank has rank 0's
  bool same_output = false;  ///< every rank computes the same from it; the loss is that of rank 0
};

Primitive around(const Differentiated& what, int rank) {
  return [&what, rank](const at::Tensor& x) {
    const auto y = what.primitive(at::sin(x) * x);
    // After a sum all ranks do the same; else each its own.
    return (at::tanh(y) * y * (what.same_output ? 1 : 1 + rank)).sum();
  };
}

double loss_of(const Differentiated& what, const Tensors& inputs) {
  const auto size = static_cast<int>(inputs.size());
  d2d::SimulatedJob job(size);
  std::vector<double> losses(inputs.size());
  on_group(job, size, [&](int rank) {
    const auto place = static_cast<std::size_t>(rank);
    losses[place] = around(what, rank)(inputs[place]).item<double>();
  });
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return what.same_output ? losses[0] : sum;
}

Tensors gradients_of(const Differentiated& what, const Tensors& inputs) {
  const auto size = static_cast<int>(inputs.size());
  d2d::SimulatedJob job(size);
  Tensors gradients(inputs.size());
  on_group(job, size, [&](int rank) {
    const auto place = static_cast<std::size_t>(rank);
    const auto leaf = inputs[place].clone().requires_grad_();
    const auto loss = around(what, rank)(leaf);
    backward(loss, at::ones_like(loss));
    gradients[place] = leaf.grad();
  });
  return gradients;
}

/// Central differences of the loss by every element of the input of `rank`, or of all ranks'.
at::Tensor differences(const Differentiated& what, const Tensors& inputs, std::size_t rank) {
  constexpr double kStep = 1e-5;
  auto result = at::zeros_like(inputs[rank]);
  for (std::int64_t i = 0; i < result.numel(); ++i) {
    std::array<double, 2> losses{};
    for (const int side : {0, 1}) {
      Tensors moved;
      for (const auto& input : inputs) moved.push_back(input.clone());
      for (std::size_t other = 0; other < moved.size(); ++other) {
        if (other == rank || what.same_input) moved[other].view(-1)[i] += side ? kStep : -kStep;
      }
      losses[static_cast<std::size_t>(side)] = loss_of(what, moved);
    }
    result.view(-1)[i] = (losses[1] - losses[0]) / (2 * kStep);
  }
  return result;
}

std::vector<Differentiated> all_primitives(int size) {
  const auto n = static_cast<std::int64_t>(size);
  return {
      {"allgather along 0", [](const auto& x) { return fused_allgather_for_tp(x, 0); }, {2, 3}},
      {"allgather along 1", [](const auto& x) { return fused_allgather_for_tp(x, -1); }, {2, 2}},
      {"reduce-scatter along 0", [](const auto& x) { return reduce_scatter_for_tp(x, 0); }, {n, 2}},
      {"reduce-scatter along 1", [](const auto& x) { return reduce_scatter_for_tp(x, 1); }, {2, n}},
      {"scatter-and-merge 1 to 0",
       [](const auto& x) { return scatter_and_merge_for_tp(x, -1, 0); },
       {2, n}},
      {"scatter-and-merge 0 to 1",
       [](const auto& x) { return scatter_and_merge_for_tp(x, 0, 1); },
       {n, 2}},
      {"own part along 0", [](const auto& x) { return own_part_for_tp(x, 0); }, {n, 2}, true},
      {"own part along 1", [](const auto& x) { return own_part_for_tp(x, -1); }, {2, n}, true},
      {"joined parts along 0",
       [](const auto& x) { return join_parts_for_tp(x, 0); },
       {2, 3},
       false,
       true},
      {"joined parts along 1",
       [](const auto& x) { return join_parts_for_tp(x, 1); },
       {2, 2},
       false,
       true},
      {"forward allreduce", fwd_allreduce_for_tp, {2, 3}, false, true},
      {"backward allreduce", bwd_allreduce_for_tp, {2, 3}, true, false},
  };
}

TEST_P(OnRanks, GradientsAreThoseOfCentralDifferences) {
  for (const auto& what : all_primitives(size)) {
    auto all = inputs(size, what.input);
    if (what.same_input) all.assign(all.size(), all[0]);
    const auto gradients = gradients_of(what, all);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      // Before the copy every rank does the same, so that each has the whole gradient.
      const auto expected = differences(what, all, rank);
      EXPECT_TRUE(at::allclose(gradients[rank], expected, 1e-7, 1e-9))
          << what.name << " on rank " << rank << " of " << size << ":\n"
          << gradients[rank] << "\nexpected\n"
          << expected;
    }
  }
}

TEST_P(OnRanks, ARankWithoutAGradientTakesPartInBackward) {
  if (size == 1) return;
  d2d::SimulatedJob job(size);
  on_group(job, size, [&](int rank) {
    const auto leaf = at::ones({size, 2}, at::kDouble).requires_grad_();
    const auto parts = reduce_scatter_for_tp(leaf, 0);
    const auto joined = fused_allgather_for_tp(parts, 0);
    // Elsewhere it is in the graph, and no gradient comes.
    const torch::autograd::Edge edge(joined.grad_fn(), joined.output_nr());
    server::run_backward({edge}, {rank == 0 ? at::ones_like(joined) : at::Tensor()});
    EXPECT_TRUE(at::equal(leaf.grad(), at::ones({size, 2}, at::kDouble))) << rank;
  });
}

// ---- order ----

/// Microbatches, each on a fiber of its own, that are delayed at random on every rank.
void run_microbatches(int size, int microbatches, std::uint64_t seed) {
  d2d::SimulatedJob job(size, seed);
  std::mt19937_64 random(seed);
  std::vector<std::function<void()>> fibers;
  for (int rank = 0; rank < size; ++rank) {
    for (int m = 0; m < microbatches; ++m) {
      std::vector<base::Nanoseconds> delays;
      for (int i = 0; i < 4; ++i) delays.push_back(random() % 1'000'000);
      fibers.push_back([&job, size, rank, m, delays] {
        const auto pause = [&](int i) {
          fiber::Scheduler::instance().sleep_for(delays[static_cast<std::size_t>(i)],
                                                 d2d::kForTheTest);
        };
        NumberedPlaces places(1, m);
        TensorParallel group(job.rank(rank).all(), places);
        const base::FiberLocalScope scope(TensorParallel::local(), &group);
        const auto leaf = at::full({2, size}, rank + 10. * m, at::kDouble).requires_grad_();
        pause(0);
        const auto merged = scatter_and_merge_for_tp(leaf, 1, 0);
        pause(1);
        const auto sum = reduce_scatter_for_tp(merged * merged, 0);
        pause(2);
        // Row pair r of `merged` is rank r's; the sum over ranks of its squares is size times that.
        ASSERT_TRUE(at::equal(
            sum, at::full({2, 1}, size * (rank + 10. * m) * (rank + 10. * m), at::kDouble)));
        const auto loss = sum.sum();
        pause(3);
        backward(loss, at::ones_like(loss));
        ASSERT_TRUE(at::equal(leaf.grad(), 2 * leaf.detach())) << rank << ' ' << m;
      });
    }
  }
  job.run(fibers);
  EXPECT_TRUE(job.failures.empty());
}

TEST(PrimitiveOrder, DoesNotMatterBetweenMicrobatches) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) run_microbatches(seed % 2 ? 2 : 4, 4, seed);
}

// ---- traffic ----

struct Sent {
  std::uint64_t messages, bytes;
  bool operator==(const Sent&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Sent& sent) {
    return out << sent.messages << " messages, " << sent.bytes << " bytes";
  }
};

/// By rank 0, in forward and in backward.
std::pair<Sent, Sent> sent_in(int size, const Primitive& primitive, at::IntArrayRef sizes) {
  d2d::SimulatedJob job(size);
  Sent forward{}, whole{};
  const auto count = [&] {
    const auto& counters = job.channel(0).counters();
    return Sent{counters.frames_sent, counters.tensor_bytes_sent};
  };
  on_group(job, size, [&](int rank) {
    const auto leaf = input_of(rank, sizes).requires_grad_();
    const auto output = primitive(leaf);
    if (rank == 0) forward = count();
    backward(output, at::ones_like(output));
    if (rank == 0) whole = count();
  });
  return {forward, {whole.messages - forward.messages, whole.bytes - forward.bytes}};
}

TEST(PrimitiveTraffic, IsWhatTheFormulasSay) {
  for (const int size : {2, 4}) {
    const auto n = static_cast<std::uint64_t>(size);
    const std::uint64_t bytes = 8 * 16 * 100;  // of the tensor
    const Sent whole{n - 1, (n - 1) * bytes}, parts{n - 1, (n - 1) * bytes / n}, none{0, 0};
    const Sent parts_of_gathered{n - 1, (n - 1) * bytes}, whole_part{n - 1, (n - 1) * bytes / n};
    const Sent sum{2 * (n - 1), 2 * (n - 1) * bytes / n};
    const auto sent = [&](const Primitive& primitive) {
      return sent_in(size, primitive, {16, 100});
    };
    EXPECT_EQ(sent([](const auto& x) { return fused_allgather_for_tp(x, 1); }),
              std::pair(whole, parts_of_gathered));
    EXPECT_EQ(sent([](const auto& x) { return reduce_scatter_for_tp(x, 1); }),
              std::pair(parts, whole_part));
    EXPECT_EQ(sent([](const auto& x) { return scatter_and_merge_for_tp(x, 1, 0); }),
              std::pair(parts, parts));
    EXPECT_EQ(sent([](const auto& x) { return join_parts_for_tp(x, 1); }), std::pair(whole, none));
    EXPECT_EQ(sent([](const auto& x) { return own_part_for_tp(x, 1); }),
              std::pair(none, whole_part));
    EXPECT_EQ(sent(fwd_allreduce_for_tp), std::pair(sum, none));
    EXPECT_EQ(sent(bwd_allreduce_for_tp), std::pair(none, sum));
    // What plans count.
    const auto sent_of = [&](const Traffic& traffic) {
      return Sent{static_cast<std::uint64_t>(traffic.rounds) * (n - 1),
                  static_cast<std::uint64_t>(traffic.bytes)};
    };
    const auto counted = [&](const Exchange& exchange) {
      const auto of_tensor = static_cast<double>(bytes);
      return std::pair(sent_of(exchange.traffic(size, of_tensor)),
                       sent_of(exchange.traffic_of_dual(size, of_tensor)));
    };
    EXPECT_EQ(counted(Exchange::gather(1)), std::pair(whole, parts_of_gathered));
    EXPECT_EQ(counted(Exchange::reduce_scatter(1)), std::pair(parts, whole_part));
    EXPECT_EQ(counted(Exchange::all_to_all(1, 0)), std::pair(parts, parts));
    EXPECT_EQ(counted(Exchange::join_parts(1)), std::pair(whole, none));
    EXPECT_EQ(counted(Exchange::own_part(1)), std::pair(none, whole_part));
    EXPECT_EQ(counted(Exchange::sum()), std::pair(sum, none));
    EXPECT_EQ(counted(Exchange::identity()), std::pair(none, sum));
  }
}

// ---- refusals ----

TEST(PrimitiveRefusals, NameSizesThatCannotBeDivided) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int) {
    EXPECT_THAT(refusal<UsageError>([] {
                  reduce_scatter_for_tp(at::ones({3, 4}), 0);
                }),
                AllOf(HasSubstr("smp::reduce_scatter_for_tp of [3, 4] among 2 tensor-parallel"),
                      HasSubstr("dimension 0 has 3 elements"), HasSubstr("choose sizes")));
    EXPECT_THAT(refusal<UsageError>([] {
                  scatter_and_merge_for_tp(at::ones({2, 5}), -1, 0);
                }),
                HasSubstr("dimension 1 has 5 elements"));
    EXPECT_THAT(refusal<UsageError>([] {
                  own_part_for_tp(at::ones({5, 2}), 0);
                }),
                HasSubstr("smp::own_part_for_tp of [5, 2] among 2 tensor-parallel"));
    EXPECT_THROW(fused_allgather_for_tp(at::ones({2, 5}), 2), c10::IndexError);
    EXPECT_THROW(fused_allgather_for_tp(at::Tensor(), 0), UsageError);
  });
}

TEST(PrimitiveRefusals, NameRankModuleAndShapesThatDiffer) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int rank) {
    EXPECT_THAT(refusal<UsageError>([&] { fused_allgather_for_tp(at::ones({2 + rank}), 0); }),
                AllOf(HasSubstr(rank == 0 ? "rank 0, module 'net.layer', microbatch 0"
                                          : "rank 1, module 'net.layer', microbatch 0"),
                      HasSubstr("smp::fused_allgather_for_tp"), HasSubstr("Float [2]"),
                      HasSubstr("Float [3]"), HasSubstr("batches of the same shape")));
  });
}

TEST(PrimitiveRefusals, NeedASession) {
  EXPECT_THAT(refusal<UsageError>([] { fwd_allreduce_for_tp(at::ones({2})); }),
              HasSubstr("without a session: call smp::init"));
}

TEST(PrimitiveRefusals, LetTheStockEngineSayWhatToCall) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int) {
    const auto leaf = at::ones({2}).requires_grad_();
    const auto output = fwd_allreduce_for_tp(leaf).sum();
    EXPECT_THAT(refusal<UsageError>([&] { output.backward(); }),
                AllOf(HasSubstr("smp::fwd_allreduce_for_tp"), HasSubstr("model.backward(loss)")));
  });
}

}  // namespace primitives_test
}  // namespace smp::tp
