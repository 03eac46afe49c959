// The mean of gradients over replicas: right, in one order, and with gradients that are missing.
#include "dp/gradient_reducer.h"
#include "dp/reports_of_all.h"

#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "d2d/wire/simulated_job.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::dp {
namespace gradient_reducer_test {

constexpr int kReplicas = 3;

/// Numbers whose sum depends on the order of additions.
at::Tensor gradient_of(int replica, at::IntArrayRef sizes) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  const auto numbers = at::arange(count, at::kDouble) * 0.37 + replica * 13.7;
  return (at::sin(numbers) * at::exp(at::cos(numbers) * 8)).to(at::kFloat).reshape(sizes);
}

at::Tensor mean_in_order(at::IntArrayRef sizes) {
  auto sum = gradient_of(0, sizes);
  for (int replica = 1; replica < kReplicas; ++replica) sum += gradient_of(replica, sizes);
  return sum.div_(kReplicas);
}

at::Tensor parameter(at::IntArrayRef sizes, const at::Tensor& gradient) {
  auto made = at::zeros(sizes).requires_grad_();
  made.mutable_grad() = gradient;
  return made;
}

/// What each replica's gradients become.
using Gradients = std::map<int, std::vector<at::Tensor>>;

Gradients reduce(const std::function<std::vector<at::Tensor>(int replica)>& parameters_of,
                 std::int64_t bucket_bytes, std::uint64_t seed = 1,
                 const std::vector<int>& owners = {}) {
  Gradients gradients;
  d2d::SimulatedJob job(kReplicas, seed);
  job.on_ranks({0, 1, 2}, [&](int rank, d2d::Communicators& own) {
    const auto parameters = parameters_of(rank);
    GradientReducer reducer(own.all(), parameters, bucket_bytes, 100, 0, owners);
    reducer.reduce(reports_of_all(own, reducer));
    for (const auto& each : parameters) gradients[rank].push_back(each.grad());
  });
  return gradients;
}

TEST(GradientReducer, TakesTheMeanInOrderOfReplicasWhateverTheBuckets) {
  const auto parameters_of = [](int replica) {
    std::vector<at::Tensor> parameters;
    for (const std::int64_t size : {1, 40, 3000, 7}) {
      parameters.push_back(parameter({size, 2}, gradient_of(replica, {size, 2})));
    }
    return parameters;
  };
  for (const std::int64_t bucket_bytes : {1, 400, 1 << 20}) {
    for (const std::uint64_t seed : {1, 2, 3}) {
      for (const auto& [replica, gradients] : reduce(parameters_of, bucket_bytes, seed)) {
        for (const auto& gradient : gradients) {
          EXPECT_TRUE(at::equal(gradient, mean_in_order(gradient.sizes())))
              << "replica " << replica << ", " << bucket_bytes << " bytes";
        }
      }
    }
  }
}

TEST(GradientReducer, CountsAMissingGradientAsZeroAndLeavesOneThatAllMiss) {
  const auto parameters_of = [](int replica) {
    return std::vector<at::Tensor>{parameter({2}, replica == 1 ? at::full({2}, 6.f) : at::Tensor()),
                                   parameter({3}, at::Tensor())};
  };
  for (const auto& [replica, gradients] : reduce(parameters_of, 1 << 20)) {
    EXPECT_TRUE(at::equal(gradients[0], at::full({2}, 2.f))) << "replica " << replica;
    EXPECT_FALSE(gradients[1].defined()) << "replica " << replica;
  }
}

/// A sum of three would be infinite. (LibTorch does not add sparse halves on a CPU.)
TEST(GradientReducer, TakesTheMeanOfLargeHalves) {
  const auto parameters_of = [](int replica) {
    const auto large = at::tensor({40000.f, 65504.f, 1.f}) * (1 - 0.25f * replica);
    auto tensor = at::zeros({3}, at::kHalf).requires_grad_();
    tensor.mutable_grad() = large.to(at::kHalf);
    return std::vector<at::Tensor>{tensor};
  };
  const auto expected = at::tensor({30000.f, 49128.f, 0.75f});
  for (const auto& owners : std::vector<std::vector<int>>{{}, {1}}) {
    for (const auto& [replica, gradients] : reduce(parameters_of, 1 << 20, 1, owners)) {
      if (!gradients[0].defined()) continue;  // another replica owns it
      EXPECT_TRUE(at::allclose(gradients[0].to(at::kFloat), expected, 2e-3, 0))
          << "replica " << replica << gradients[0];
    }
  }
}

/// Numbers that are conjugated or negated when they are read, as backward of conj() and imag()
/// gives them; in one replica they are stored as they are.
std::vector<at::Tensor> lazy_gradients(int replica) {
  const auto real = at::arange(6, at::kDouble) + replica;
  const auto complex = at::complex(real, real * 2 - 3);
  if (replica == 1) return {complex.conj().resolve_conj(), -real};
  return {complex.conj(), at::_neg_view(real)};
}

TEST(GradientReducer, AddsUpLazyConjugatesAndNegatives) {
  std::vector<at::Tensor> expected = lazy_gradients(0);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = (expected[i] + lazy_gradients(1)[i] + lazy_gradients(2)[i]) / kReplicas;
  }
  for (const auto& owners : std::vector<std::vector<int>>{{}, {2, 0}}) {
    d2d::SimulatedJob job(kReplicas, 1);
    job.on_ranks({0, 1, 2}, [&](int rank, d2d::Communicators& own) {
      std::vector<at::Tensor> parameters;
      for (const auto& each : lazy_gradients(rank)) {
        parameters.push_back(at::zeros_like(each.resolve_conj().resolve_neg()).requires_grad_());
      }
      GradientReducer reducer(own.all(), parameters, 1 << 20, 100, 0, owners);
      for (std::uint64_t step = 1; step <= 2; ++step) {
        const auto given = lazy_gradients(rank);
        for (std::size_t i = 0; i < given.size(); ++i) parameters[i].mutable_grad() = given[i];
        fiber::Event news;
        reducer.begin_step(step, news);
        for (std::size_t i = 0; i < given.size(); ++i) reducer.note_final(i);
        const auto reports = reports_of_all(own, reducer);
        EXPECT_EQ(reports[0].early.find('+') != std::string::npos, step == 2) << "begun early";
        EXPECT_EQ(reports[0].early.find('-') == std::string::npos, step == 2) << "begun early";
        reducer.reduce(reports, step);
        reducer.end_step();
        for (std::size_t i = 0; i < given.size(); ++i) {
          const bool here = owners.empty() || owners[i] == rank;
          ASSERT_EQ(parameters[i].grad().defined(), here) << "rank " << rank << ", " << i;
          if (here) {
            EXPECT_TRUE(at::allclose(parameters[i].grad(), expected[i], 1e-14, 1e-14))
                << "rank " << rank << ", step " << step << "\n"
                << parameters[i].grad();
          }
        }
      }
    });
    EXPECT_TRUE(job.failures.empty());
  }
}

/// Rows 0 and 1 + replica of a table of five.
at::Tensor sparse_gradient(int replica) {
  const auto rows = at::tensor({0, 1 + replica}, at::kLong).view({1, 2});
  return at::sparse_coo_tensor(rows, at::full({2, 2}, replica + 1.f), {5, 2}).coalesce();
}

TEST(GradientReducer, KeepsSparseGradientsSparse) {
  const auto parameters_of = [](int replica) {
    const bool used = replica != 1;
    return std::vector<at::Tensor>{
        parameter({5, 2}, used ? sparse_gradient(replica) : at::Tensor())};
  };
  const auto expected = (sparse_gradient(0).to_dense() + sparse_gradient(2).to_dense()) / 3;
  for (const auto& [replica, gradients] : reduce(parameters_of, 8)) {
    ASSERT_TRUE(gradients[0].is_sparse()) << "replica " << replica;
    EXPECT_EQ(gradients[0]._nnz(), 3);
    EXPECT_TRUE(at::allclose(gradients[0].to_dense(), expected));
  }
}

TEST(GradientReducer, MakesASparseGradientDenseIfAnotherIs) {
  const auto parameters_of = [](int replica) {
    return std::vector<at::Tensor>{
        parameter({5, 2}, replica == 1 ? at::ones({5, 2}) : sparse_gradient(replica))};
  };
  const auto expected =
      (sparse_gradient(0).to_dense() + at::ones({5, 2}) + sparse_gradient(2).to_dense()) / 3;
  for (const auto& [replica, gradients] : reduce(parameters_of, 8)) {
    ASSERT_FALSE(gradients[0].is_sparse()) << "replica " << replica;
    EXPECT_TRUE(at::allclose(gradients[0], expected));
  }
}

TEST(GradientReducer, KeepsTheGradientsThatOptimizersAndUsersHold) {
  const auto held = at::full({2}, 3.f);
  const auto parameters_of = [&](int replica) {
    return std::vector<at::Tensor>{parameter({2}, replica == 0 ? held : at::zeros({2}))};
  };
  reduce(parameters_of, 8);
  EXPECT_TRUE(at::equal(held, at::ones({2})));
}

TEST(GradientReducer, GivesOwnersTheSameBitsAndOthersNothing) {
  const std::vector<std::int64_t> sizes{1, 40, 3000, 7, 0, 900};
  const std::vector<int> owners{2, 0, 0, -1, 1, 2};
  const auto parameters_of = [&](int replica) {
    std::vector<at::Tensor> parameters;
    for (const auto size : sizes) {
      parameters.push_back(parameter({size, 2}, gradient_of(replica, {size, 2})));
    }
    return parameters;
  };
  for (const std::int64_t bucket_bytes : {1, 4000, 1 << 20}) {
    const auto everywhere = reduce(parameters_of, bucket_bytes);
    for (const std::uint64_t seed : {1, 2, 3}) {
      for (const auto& [replica, gradients] : reduce(parameters_of, bucket_bytes, seed, owners)) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          const bool here = owners[i] < 0 || owners[i] == replica;
          ASSERT_EQ(gradients[i].defined(), here) << "replica " << replica << ", " << i;
          if (here) {
            EXPECT_TRUE(at::equal(gradients[i], everywhere.at(replica)[i]));
          }
        }
      }
    }
  }
}

TEST(GradientReducer, GivesOwnersWhatOthersHaveAloneAndLeavesWhatAllMiss) {
  const auto parameters_of = [](int replica) {
    return std::vector<at::Tensor>{
        parameter({2}, replica == 1 ? at::full({2}, 6.f) : at::Tensor()),
        parameter({3}, at::Tensor()),
        parameter({5, 2}, replica != 1 ? sparse_gradient(replica) : at::Tensor())};
  };
  const auto gradients = reduce(parameters_of, 1 << 20, 1, {2, 0, 1});
  EXPECT_TRUE(at::equal(gradients.at(2)[0], at::full({2}, 2.f)));
  EXPECT_FALSE(gradients.at(0)[1].defined());
  const auto expected = (sparse_gradient(0).to_dense() + sparse_gradient(2).to_dense()) / 3;
  ASSERT_TRUE(gradients.at(1)[2].is_sparse());
  EXPECT_TRUE(at::allclose(gradients.at(1)[2].to_dense(), expected));
  EXPECT_FALSE(gradients.at(0)[2].defined());
}

/// 12 bits of precision, and what it was asked for.
class Rounding final : public CommHook {
 public:
  explicit Rounding(bool pure) : pure_(pure) {}
  std::vector<at::Tensor> compress(const at::Tensor& elements, const Part& part) override {
    parts.push_back(part);
    return {elements.to(at::kBFloat16)};
  }
  at::Tensor decompress(const std::vector<at::Tensor>& compressed, const at::Tensor& like,
                        const Part&) override {
    return compressed.at(0).to(like.scalar_type());
  }
  bool is_pure() const noexcept override { return pure_; }
  std::vector<Part> parts;

 private:
  const bool pure_;
};

at::Tensor rounded(const at::Tensor& tensor) { return tensor.to(at::kBFloat16).to(at::kFloat); }

at::Tensor mean_of_rounded(at::IntArrayRef sizes) {
  auto sum = rounded(gradient_of(0, sizes));
  for (int replica = 1; replica < kReplicas; ++replica) sum += rounded(gradient_of(replica, sizes));
  return rounded(sum.div_(kReplicas));
}

TEST(GradientReducer, GivesAllReplicasWhatTheHookMakesOfTermsAndMean) {
  for (const std::int64_t bucket_bytes : {1, 4000, 1 << 20}) {
    d2d::SimulatedJob job(kReplicas, static_cast<std::uint64_t>(bucket_bytes));
    job.on_ranks({0, 1, 2}, [&](int rank, d2d::Communicators& own) {
      std::vector<at::Tensor> parameters;
      for (const std::int64_t size : {1, 40, 3000, 7}) {
        parameters.push_back(parameter({size, 2}, gradient_of(rank, {size, 2})));
      }
      const auto table = sparse_gradient(rank);
      parameters.push_back(parameter({5, 2}, table));
      GradientReducer reducer(own.all(), parameters, bucket_bytes, 100);
      const auto hook = std::make_shared<Rounding>(false);
      reducer.set_hook(hook);
      for (std::uint64_t step = 1; step <= 3; ++step) {
        for (int i = 0; i < 4; ++i) {
          const auto& each = parameters[static_cast<std::size_t>(i)];
          at::Tensor(each).mutable_grad() = gradient_of(rank, each.sizes());
        }
        at::Tensor(parameters[4]).mutable_grad() = table;
        fiber::Event news;
        reducer.begin_step(step, news);
        for (std::size_t i = 0; i < 5; ++i) reducer.note_final(i);
        EXPECT_FALSE(reducer.under_way()) << "a hook that may remember something";
        reducer.reduce(reports_of_all(own, reducer), step);
        reducer.end_step();
        for (int i = 0; i < 4; ++i) {
          const auto& each = parameters[static_cast<std::size_t>(i)];
          EXPECT_TRUE(at::equal(each.grad(), mean_of_rounded(each.sizes())));
        }
        EXPECT_TRUE(parameters[4].grad().is_sparse());
      }
      int terms = 0, sums = 0;
      for (const auto& part : hook->parts) {
        ++(part.sum ? sums : terms);
        if (part.sum) {
          EXPECT_EQ(part.part, rank);
        }
      }
      EXPECT_EQ(terms % 3, 0);
      EXPECT_GT(sums, 0);
    });
    EXPECT_TRUE(job.failures.empty());
  }
}

TEST(GradientReducer, RefusesWhatAHookMayNotGive) {
  struct Wrong final : CommHook {
    std::vector<at::Tensor> compress(const at::Tensor& elements, const Part&) override {
      return {elements.clone()};
    }
    at::Tensor decompress(const std::vector<at::Tensor>&, const at::Tensor& like,
                          const Part&) override {
      return at::zeros({like.numel() + 1});
    }
  };
  d2d::SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int rank, d2d::Communicators& own) {
    const std::vector<at::Tensor> parameters{parameter({6}, gradient_of(rank, {6}))};
    GradientReducer reducer(own.all(), parameters, 1 << 20, 100);
    reducer.set_hook(std::make_shared<Wrong>());
    const auto reports = reports_of_all(own, reducer);
    EXPECT_THAT(refusal([&] { reducer.reduce(reports, 1); }),
                testing::HasSubstr("is to give Float [3], but gave Float [4]"));
  });
}

/// Lets everything through, and counts the elements of each part.
class Counting final : public CommHook {
 public:
  std::vector<at::Tensor> compress(const at::Tensor& elements, const Part& part) override {
    seen[{part.bucket, part.part, part.sum}].push_back(elements.numel());
    return {elements.clone()};
  }
  at::Tensor decompress(const std::vector<at::Tensor>& compressed, const at::Tensor&,
                        const Part&) override {
    return compressed.at(0).clone();
  }
  std::map<std::tuple<std::int64_t, int, bool>, std::vector<std::int64_t>> seen;
};

TEST(GradientReducer, ShowsAHookTheSameElementsWhateverGradientsThereAre) {
  d2d::SimulatedJob job(kReplicas, 1);
  job.on_ranks({0, 1, 2}, [&](int rank, d2d::Communicators& own) {
    std::vector<at::Tensor> parameters;
    for (const std::int64_t size : {5, 8, 7}) {
      parameters.push_back(parameter({size, 3}, gradient_of(rank, {size, 3})));
    }
    GradientReducer reducer(own.all(), parameters, 1 << 20, 100);
    const auto hook = std::make_shared<Counting>();
    reducer.set_hook(hook, 4);
    for (int step = 1; step <= 4; ++step) {
      for (auto& each : parameters) each.mutable_grad() = gradient_of(rank, each.sizes());
      if (step % 2 == 0) parameters[1].mutable_grad().reset();           // nobody has it
      if (step == 3 && rank == 1) parameters[0].mutable_grad().reset();  // somebody has it
      reducer.reduce(reports_of_all(own, reducer), static_cast<std::uint64_t>(step));
      EXPECT_EQ(parameters[1].grad().defined(), step % 2 == 1);
      EXPECT_TRUE(at::equal(parameters[2].grad(), mean_in_order(parameters[2].sizes())));
    }
    EXPECT_EQ(hook->seen.size(), kReplicas + 1u) << "gradients to each, and the sum of its own";
    for (const auto& [key, counts] : hook->seen) {
      EXPECT_EQ(std::get<0>(key), 4);
      EXPECT_EQ(counts, std::vector<std::int64_t>(4, (5 + 8 + 7) * 3 / kReplicas));
    }
  });
}

}  // namespace gradient_reducer_test
}  // namespace smp::dp
