// Gradients of what is outside of models: arguments of a step, the graph that led to them, leaves
// that a body captures. They are this replica's part of the gradient of the job.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "api/rank/rank.h"
#include "api/two_ranks.h"

namespace smp {
namespace outside_gradients_test {

using testing::HasSubstr;

constexpr int kWidth = 4;
constexpr int kMicrobatches = 2;
constexpr int kVocabulary = 7;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", nn::Linear(kWidth, 6))),
        last(register_module("last", nn::Linear(6, 2))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return last(torch::tanh(first(x))); }
  nn::Linear first, last;
};
SMP_MODULE(Net);

at::Tensor loss_of(const at::Tensor& y, const std::string& loss) {
  return loss == "sum" ? y.square().sum() : y.square().mean();
}

struct Layout {
  std::string loss = "mean";
  std::vector<int> rows = {4, 4};
  int stages = 1;
  bool static_mode = false;
  std::vector<double> weights = {0.75, 2.5};
  std::uint64_t seed = 1;
};

void PrintTo(const Layout& run, std::ostream* out) {
  *out << "loss " << run.loss << ", " << run.stages << " stages, rows";
  for (const int rows : run.rows) *out << ' ' << rows;
  *out << (run.static_mode ? ", static" : "");
}

/// What a replica has outside of the model.
struct Outside {
  explicit Outside(int replica, int rows)
      : x(at::sin(at::arange(rows * kWidth, at::kDouble) + 3 * replica)
              .view({rows, kWidth})
              .requires_grad_()),
        tokens(at::remainder(at::arange(rows) * 3 + replica, kVocabulary)),
        table(at::cos(at::arange(kVocabulary * kWidth, at::kDouble))
                  .view({kVocabulary, kWidth})
                  .requires_grad_()),
        whole(at::full({kWidth}, 1.5, at::kDouble).requires_grad_()),
        captured(at::full({kWidth}, 0.7, at::kDouble).requires_grad_()) {}

  at::Tensor embedded() const { return table.index_select(0, tokens); }

  at::Tensor x;         ///< [rows, width]: a leaf that is an argument
  at::Tensor tokens;    ///< [rows]
  at::Tensor table;     ///< its rows are an argument with history
  at::Tensor whole;     ///< an argument that all microbatches get
  at::Tensor captured;  ///< of the body
};

template <class Model>
at::Tensor output(Model& model, const Outside& outside, const at::Tensor& x,
                  const at::Tensor& embedded, const at::Tensor& whole) {
  return model(x * whole + embedded * outside.captured);
}

/// In one process each replica's tensors are tensors of their own.
std::vector<Outside> reference(const Layout& run) {
  torch::manual_seed(5);
  NetImpl net;
  const auto model = [&](const at::Tensor& x) { return net.forward(x); };
  double all_rows = 0;
  for (const int rows : run.rows) all_rows += rows;
  std::vector<Outside> replicas;
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (std::size_t r = 0; r < run.rows.size(); ++r) {
    const auto& own = replicas.emplace_back(static_cast<int>(r), run.rows[r]);
    const auto embedded = own.embedded();
    std::int64_t begin = 0;
    for (int m = 0; m < kMicrobatches; ++m) {
      const auto length = run.rows[r] / kMicrobatches + (m < run.rows[r] % kMicrobatches ? 1 : 0);
      const double weight = run.loss == "sum"    ? 1.0
                            : run.loss == "mean" ? static_cast<double>(length) / all_rows
                                                 : run.weights[static_cast<std::size_t>(m)] /
                                                       static_cast<double>(run.rows.size());
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, begin, length); };
      loss = loss +
             weight * loss_of(output(model, own, part(own.x), part(embedded), own.whole), run.loss);
      begin += length;
    }
  }
  loss.backward();
  return replicas;
}

void expect_close(const at::Tensor& got, const at::Tensor& expected, const char* what) {
  ASSERT_TRUE(got.defined()) << what;
  EXPECT_TRUE(at::allclose(got, expected, 1e-12, 1e-14)) << what << " on rank " << rank() << "\n"
                                                         << got << "\n"
                                                         << expected;
}

Config config_of(const Layout& run) {
  Config config;
  config.pipeline_parallel_degree = run.stages;
  config.microbatches = kMicrobatches;
  config.loss = run.loss;
  config.static_mode = run.static_mode;
  config.plan_cache = "off";
  if (run.loss == "weights") config.loss_weights = run.weights;
  return config;
}

void expect_as_in_one_process(const Layout& run) {
  SCOPED_TRACE(testing::PrintToString(run));
  const auto expected = reference(run);
  run_local(
      run.stages * static_cast<int>(run.rows.size()),
      [&] {
        torch::manual_seed(5);
        Net net;
        DistributedModel<Net> model(net);
        model.set_partition("", 0);
        model.set_partition("first", run.stages - 1);
        const auto replica = static_cast<std::size_t>(dp_rank());
        Outside own(dp_rank(), run.rows[replica]);
        StepOptions options;
        options.non_split = {2};
        auto train = smp::step(
            [&](const at::Tensor& x, const at::Tensor& embedded, const at::Tensor& whole) {
              const auto loss = loss_of(output(model, own, x, embedded, whole), run.loss);
              model.backward(loss);
            },
            options);
        for (int step = 0; step < (run.static_mode ? 8 : 1); ++step) {
          for (auto* tensor : {&own.x, &own.table, &own.whole, &own.captured}) {
            tensor->mutable_grad().reset();
          }
          train(own.x, own.embedded(), own.whole);
          if (pp_rank() != 0) continue;
          expect_close(own.x.grad(), expected[replica].x.grad(), "an argument");
          expect_close(own.table.grad(), expected[replica].table.grad(), "what led to an argument");
          expect_close(own.whole.grad(), expected[replica].whole.grad(), "a whole argument");
          expect_close(own.captured.grad(), expected[replica].captured.grad(), "a captured leaf");
        }
        if (pp_rank() != 0) return;
        EXPECT_EQ(Rank::current().server().core().counters.replayed > 0, run.static_mode);
        at::Tensor sum;
        for (const auto& part : all_gather(own.captured.grad(), Group::kDp)) {
          sum = sum.defined() ? sum + part : part;
        }
        at::Tensor all;
        for (const auto& one : expected) {
          all = all.defined() ? all + one.captured.grad() : one.captured.grad();
        }
        expect_close(sum, all, "the sum over replicas");
      },
      config_of(run), {.seed = run.seed});
}

TEST(OutsideGradients, ArePartsOfThatOfTheJob) {
  for (const int stages : {1, 2}) {
    for (const auto* loss : {"mean", "sum", "weights"}) {
      for (const auto& rows : std::vector<std::vector<int>>{{4}, {4, 4}, {5, 3}, {4, 3, 2}}) {
        expect_as_in_one_process({loss, rows, stages});
      }
    }
  }
}

TEST(OutsideGradients, AreTheSameInReplayedSteps) {
  for (const auto* loss : {"mean", "sum"}) {
    expect_as_in_one_process({loss, {5, 3}, 2, true});
  }
}

TEST(OutsideGradients, OutputsHaveNoHistory) {
  on_ranks(2, [] {
    torch::manual_seed(5);
    Net net;
    DistributedModel<Net> model(net);
    auto train = smp::step([&](const at::Tensor& x) { return model(x).sum(); });
    const auto loss = train(at::ones({4, kWidth}, at::kDouble)).reduce_sum();
    EXPECT_FALSE(loss.requires_grad());
    EXPECT_THAT(refusal<c10::Error>([&] { loss.backward(); }), HasSubstr("does not require grad"));
  });
}

// ---- the order of sums --------------------------------------------------------------------------

/// Terms of very different size: another order has other bits. Delays are random.
at::Tensor gradient_of_captured(std::uint64_t seed, bool earlier, int passes) {
  Config config;
  config.pipeline_parallel_degree = 2;
  config.microbatches = 6;
  config.plan_cache = "off";
  config.pipeline = "simple";
  at::Tensor gradient;
  run_local(2,
            [&] {
              torch::manual_seed(5);
              Net net;
              DistributedModel<Net> model(net);
              model.set_partition("", 0);
              model.set_partition("first", 1);
              const auto captured = at::full({kWidth}, 0.7, at::kDouble).requires_grad_();
              auto train = smp::step([&](const at::Tensor& x) {
                const double scale = std::pow(10.0, (5 * current_microbatch()) % 7);
                for (int pass = 0; pass < passes; ++pass) {
                  model.backward((model(x * captured).sum() + 1.1 * captured.sum()) * scale / 3);
                }
              });
              for (int step = 0; step < 3; ++step) {
                captured.mutable_grad().reset();
                if (earlier) captured.mutable_grad() = at::full({kWidth}, 1e-3, at::kDouble);
                train(at::sin(at::arange(6 * kWidth, at::kDouble)).view({6, kWidth}));
              }
              if (rank() == 0) gradient = captured.grad().clone();
            },
            config, {.seed = seed});
  return gradient;
}

TEST(CapturedLeaves, HaveTheSameBitsWhateverTheTiming) {
  for (const bool earlier : {false, true}) {
    for (const int passes : {1, 2}) {
      const auto first = gradient_of_captured(1, earlier, passes);
      for (std::uint64_t seed = 2; seed < 20; ++seed) {
        const auto other = gradient_of_captured(seed, earlier, passes);
        EXPECT_TRUE(at::equal(other, first)) << "seed " << seed << "\n" << other - first;
      }
    }
  }
}

}  // namespace outside_gradients_test
}  // namespace smp
