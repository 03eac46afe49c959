// perf/ncf.cpp: the paper's experiment with neural collaborative filtering (§7.3): how much faster
// is training if the four tables are spread over the ranks than if each replica has all of them, at
// the same global batch? Beside it what both send, and a model of what both cost.
#include "ncf/ncf.h"

#include <ATen/ATen.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/rank/rank.h"
#include "base/check.h"
#include "d2d/job/mpi_session.h"
#include "harness.h"
#include "program.h"
#include "sleeping_stages.h"
#include "smp/smp.h"

namespace smp::perf::ncf_program {
namespace {

using at::Tensor;

constexpr int kWarmUpSteps = 2;
constexpr double kFloat = 4;  // bytes

/// Of the paper, but for a sixteenth of its users: sixteen replicas of all tables, gradients and
/// state take 2.9 GB a rank otherwise.
ncf::NcfConfig sizes(bool sparse) {
  auto config = ncf::NcfConfig::preset(brief() ? "demo" : "paper");
  if (!brief()) config.users /= 16;
  config.sparse = sparse;
  return config;
}

std::int64_t rows() { return brief() ? 32 : 256; }

/// Of one rank and step: pairs with a formula's numbers and labels.
std::vector<Tensor> batch_of(int step, int replica) {
  const auto n = at::arange(rows(), at::kLong) + 7919 * (64 * step + replica);
  return {at::remainder(n * 40503, sizes(false).users), at::remainder(n * 2654, sizes(false).items),
          at::remainder(n, 5).eq(0).to(at::kFloat)};
}

/// What one way of training shows.
struct Way {
  std::vector<double> step_us;
  std::vector<double> losses;
  double bytes = 0;  ///< of tensors that a rank sends in a step, mean of all ranks
};

double sum_of_ranks(double own) {
  double sum = 0;
  for (const double one : all_gather(own)) sum += one;
  return sum;
}

template <class Optimizer>
void measure(Way& way, bool sparse, const Optimizer& make) {
  torch::manual_seed(1);
  ncf::Ncf net(sizes(sparse));
  DistributedModel model(net);
  DistributedOptimizer optimizer(model, make(net->parameters()));
  auto train = step([&](const Tensor& user, const Tensor& item, const Tensor& label) {
    const auto loss = at::binary_cross_entropy_with_logits(model(user, item), label);
    model.backward(loss);
    return loss;
  });
  const auto sent = [] { return Rank::current().channel().counters().tensor_bytes_sent; };
  const int steps = rounds(5);
  way.losses.clear();
  std::int64_t before = 0;
  for (int s = 0; s < kWarmUpSteps + steps; ++s) {
    const auto batch = batch_of(s, dp_rank());
    double loss = 0;
    barrier();
    if (s == kWarmUpSteps) before = static_cast<std::int64_t>(sent());
    const auto duration = microseconds([&] {
      optimizer.zero_grad();
      loss = train(batch[0], batch[1], batch[2]).reduce_mean().template item<double>();
      optimizer.step();
      barrier();
    });
    if (s >= kWarmUpSteps) way.step_us.push_back(duration);
    if (s == kWarmUpSteps + steps - 1) {
      way.bytes = sum_of_ranks(static_cast<double>(sent()) - static_cast<double>(before)) /
                  (steps * size());
    }
    way.losses.push_back(sum_of_ranks(loss) / size());
  }
}

struct Ways {
  Way spread, replicated;
};

Config config_of(int tp) {
  Config config;
  config.pipeline_parallel_degree = 1;
  config.tensor_parallel_degree = tp;
  config.intra_op_threads = 1;
  config.plan_cache = "off";
  return config;
}

using InSession = std::function<void(int tp, const std::function<void()>& body)>;

/// By turns, in sessions of their own, which train to the same losses.
template <class Optimizer>
Ways by_turns(int ranks, bool sparse, const InSession& in_session, const Optimizer& make) {
  Ways ways;
  for (int round = 0; round < rounds(3); ++round) {
    in_session(1, [&] { measure(ways.replicated, sparse, make); });
    in_session(ranks, [&] { measure(ways.spread, sparse, make); });
  }
  for (std::size_t i = 0; i < ways.spread.losses.size(); ++i) {
    const double difference = std::abs(ways.spread.losses[i] - ways.replicated.losses[i]);
    SMP_REQUIRE(difference < 1e-4, "losses of step ", i, " differ: ", ways.spread.losses[i],
                " with tables spread, ", ways.replicated.losses[i], " with all of them everywhere");
  }
  return ways;
}

// ---- a model of the cost -----------------------------------------------------------------------

/// Elements of tables, and of everything else.
struct Weights {
  double tables = 0, rest = 0;
};

Weights weights() {
  const auto c = sizes(false);
  Weights all;
  all.tables = static_cast<double>((c.users + c.items) * (c.gmf_width + c.mlp_width));
  auto width = static_cast<double>(2 * c.mlp_width);
  for (int i = 0; i < 3; ++i, width /= 2) all.rest += width * width / 2 + width / 2;
  all.rest += static_cast<double>(c.gmf_width) + width + 1;
  return all;
}

/// Bytes that a rank sends in a step: an all-reduce of gradients sends 2 (n-1)/n of them; a spread
/// table sends indices to n-1 ranks, and (n-1)/n of its rows forward and of their gradients
/// backward.
double bytes_replicated(int n) {
  return 2 * (n - 1.0) / n * (weights().tables + weights().rest) * kFloat;
}
double bytes_spread(int n) {
  const auto c = sizes(false);
  const double looked_up = static_cast<double>(2 * rows() * (c.gmf_width + c.mlp_width));
  const double indices = 4 * (n - 1.0) * static_cast<double>(rows()) * 8;
  return 2 * (n - 1.0) / n * (looked_up + weights().rest) * kFloat + indices;
}

/// What things cost on one core of this machine, in microseconds.
struct Prices {
  double weight = 0;  ///< of a table: its gradient zeroed and Adam's step
  double byte = 0;    ///< sent by an all-reduce
  double dense = 0;   ///< of a step of one rank beside tables and messages
};

Prices prices_alone() {
  Prices prices;
  const auto count = std::int64_t{brief() ? 10'000 : 4'000'000};
  auto table = at::randn({count}).requires_grad_();
  torch::optim::Adam adam({table}, torch::optim::AdamOptions(1e-3));
  const auto once = [&] {
    table.mutable_grad() = at::zeros({count});
    adam.step();
  };
  once();
  prices.weight = microseconds_each(rounds(5), once) / static_cast<double>(count);
  auto small = sizes(true);  // rows as gradients: the tables cost nearly nothing
  small.users = 1000;
  ncf::Ncf net(small, /*spread=*/false);
  const auto batch = batch_of(0, 0);
  const auto user = at::remainder(batch[0], small.users);
  const auto step = [&] {
    at::binary_cross_entropy_with_logits(net(user, batch[1]), batch[2]).backward();
    net->zero_grad();
  };
  step();
  prices.dense = microseconds_each(rounds(5), step);
  return prices;
}

/// Of one rank's core, while all ranks send at once.
double price_of_a_byte(int cores) {
  const auto ranks = Rank::current().groups().of(Group::kWorld);
  const auto tensor = at::ones({brief() ? 20'000 : 2'000'000});
  const auto once = [&] { ranks.all_reduce(tensor); };
  once();
  const double bytes = 2 * (size() - 1.0) / size() * tensor.nbytes();
  return microseconds_each(rounds(5), once) * std::min(cores, size()) / (bytes * size());
}

/// Work of all ranks, shared by the cores.
double modelled_us(const Prices& prices, int n, int cores, double stepped, double bytes) {
  const double own =
      prices.weight * (stepped + weights().rest) + prices.byte * bytes + prices.dense;
  return own * n / std::min(cores, n);
}

// ---- the report --------------------------------------------------------------------------------

std::string per_second(const Way& way, int n) {
  return base::concat(std::lround(static_cast<double>(rows() * n) * 1e6 / median(way.step_us)),
                      " samples/s and ", std::lround(way.bytes / 1e3), " KB sent by each rank");
}

void report_adam(Report& report, const Ways& ways, const Prices& prices, int cores, int n) {
  const auto suffix = base::concat(".n", n);
  const double ratio = median(ways.replicated.step_us) / median(ways.spread.step_us);
  const double replicated = modelled_us(prices, n, cores, weights().tables, bytes_replicated(n));
  const double spread = modelled_us(prices, n, cores, weights().tables / n, bytes_spread(n));
  report.add("speedup" + suffix, ratio, "1",
             base::concat("tables spread: ", per_second(ways.spread, n),
                          " a step; all tables "
                          "everywhere: ",
                          per_second(ways.replicated, n), "; Adam, ", rows(),
                          " pairs a rank, aim: at least ", n == 16 ? 2.5 : 1.8));
  report.add("modelled_speedup" + suffix, replicated / spread, "1",
             base::concat("of ", std::lround(replicated), " over ", std::lround(spread),
                          " us: n / cores times weights stepped (", prices.weight * 1e3,
                          " ns each) + bytes sent (", prices.byte * 1e3, " ns each) + ",
                          std::lround(prices.dense), " us for the rest of the network"));
  report.add("step_over_modelled.spread" + suffix, median(ways.spread.step_us) / spread, "1");
  report.add("step_over_modelled.replicated" + suffix, median(ways.replicated.step_us) / replicated,
             "1");
  report.add("bytes_over_formula.spread" + suffix, ways.spread.bytes / bytes_spread(n), "1",
             "2 (n-1)/n of rows looked up and of gradients of the rest, and indices");
  report.add("bytes_over_formula.replicated" + suffix, ways.replicated.bytes / bytes_replicated(n),
             "1", "2 (n-1)/n of all gradients");
}

void run(int argc, char** argv) {
  CLI::App app("Tables spread over ranks against replicas of all tables", "smp perf ncf");
  app.footer("--ranks N starts N ranks; without it 4, then 8, then 16.");
  if (!parse_options(app, argc, argv)) return;
  const d2d::MpiSession mpi;
  const int n = mpi.size();
  SMP_REQUIRE(n > 1 && 64 % n == 0,
              "perf ncf runs on 2, 4, 8 ... ranks, over which 64 columns of a "
              "table can be spread, not on ",
              n);
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  auto report = report_of_ranks(mpi.rank().value(), "ncf", Report::Earlier::kKept);
  const InSession session = [&](int tp, const std::function<void()>& body) {
    in_session(argc, argv, config_of(tp), body);
  };
  const auto adam = [](const std::vector<Tensor>& parameters) {
    return torch::optim::Adam(parameters, torch::optim::AdamOptions(1e-3));
  };
  const auto sgd = [](const std::vector<Tensor>& parameters) {
    return torch::optim::SGD(parameters, 0.1);
  };
  Prices prices;
  session(1, [&] {
    if (rank() == 0) prices = prices_alone();
    barrier();
    prices.byte = price_of_a_byte(cores);
  });
  const auto dense = by_turns(n, false, session, adam);
  const auto sparse = by_turns(n, true, session, sgd);
  if (!report) return;
  report_adam(*report, dense, prices, cores, n);
  report->add(base::concat("speedup_sparse.n", n),
              median(sparse.replicated.step_us) / median(sparse.spread.step_us), "1",
              base::concat("rows as gradients and plain SGD, with which replicas do best; spread: ",
                           per_second(sparse.spread, n),
                           "; everywhere: ", per_second(sparse.replicated, n)));
  report->finish();
}

const Program program{"ncf", run};

}  // namespace
}  // namespace smp::perf::ncf_program
