// Promised outputs at the server: what is asked for, what travels, and that nothing stays behind.
#include "server/calls/promised_outputs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "server/engine/module_server_testing.h"

namespace smp::server::test {
namespace promised_outputs_test {

struct RowImpl : torch::nn::Module {
  explicit RowImpl(int length) {
    for (int i = 0; i < length; ++i) {
      pieces.push_back(register_module(std::to_string(i), smp::test::Scale(2)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& piece : pieces) x = piece(x);
    return x;
  }
  std::vector<smp::test::Scale> pieces;
};
SMP_MODULE(Row);

constexpr std::uint64_t kBytes = 64 * 1024;

struct Traffic {
  std::uint64_t tensors = 0;  // of 64 KiB
  ServerCounters counters;    // of rank 0
};

/// Of the last of five forwards, the first of which teaches what to expect; with one microbatch.
Traffic traffic_of(const std::vector<int>& owners, bool backward = false) {
  const int ranks = 1 + *std::max_element(owners.begin(), owners.end());
  std::map<std::string, int> places;
  for (std::size_t i = 0; i < owners.size(); ++i) places[std::to_string(i)] = owners[i];
  LocalServers servers(ranks);
  const auto schedule = schedule::make_simple();
  Traffic traffic;
  servers.run([&](ModuleServer& server) {
    Row model(static_cast<int>(owners.size()));
    place_modules(server, *model, places);
    std::uint64_t sent = 0;
    ServerCounters before;
    for (int step = 0; step < 5; ++step) {
      sent = servers.channel(server.rank()).counters().tensor_bytes_sent;
      before = server.core().counters;
      StepTask task;
      task.schedule = schedule.get();
      task.weights = {1};
      task.body = [&](int) {
        const at::AutoGradMode mode(backward);
        const auto x = at::ones({8192, 2}).requires_grad_(backward);
        const auto y = model(x);
        const auto factor = std::ldexp(1.0F, static_cast<int>(owners.size()));
        EXPECT_EQ(y[3][1].item<float>(), factor);
        if (!backward) return;
        server.engine().backward({y}, {at::ones_like(y)}, /*keep_graph=*/false);
        EXPECT_EQ(x.grad()[3][1].item<float>(), factor);
      };
      server.run_step(task);
    }
    traffic.tensors +=
        (servers.channel(server.rank()).counters().tensor_bytes_sent - sent) / kBytes;
    if (server.rank() != PpRank(0)) return;
    traffic.counters = server.core().counters;
    traffic.counters.promised -= before.promised;
    traffic.counters.passed_on -= before.passed_on;
    traffic.counters.fetched -= before.fetched;
  });
  return traffic;
}

TEST(PromisedOutputs, AChainOnOneRankSendsItsFirstArgumentAndItsLastResult) {
  const auto traffic = traffic_of({1, 1, 1, 1});
  EXPECT_EQ(traffic.tensors, 2u);
  EXPECT_EQ(traffic.counters.promised, 3u) << "the last is needed at once";
  EXPECT_EQ(traffic.counters.passed_on, 3u);
  EXPECT_EQ(traffic.counters.fetched, 0u) << "it is known who needs the last";
}

/// Through the caller each would travel twice.
TEST(PromisedOutputs, AChainOverRanksSendsEachTensorOnce) {
  EXPECT_EQ(traffic_of({1, 2, 3, 1}).tensors, 5u);
  EXPECT_EQ(traffic_of({1, 2, 1, 2, 1, 2, 1, 2}).tensors, 9u);
}

TEST(PromisedOutputs, SoDoGradients) {
  const auto traffic = traffic_of({1, 1, 1, 1}, true);
  EXPECT_EQ(traffic.tensors, 4u);
  EXPECT_EQ(traffic.counters.passed_on, 6u);
  EXPECT_EQ(traffic_of({1, 2, 3, 1}, true).tensors, 10u);
  EXPECT_EQ(traffic_of({1, 2, 1, 2, 1, 2, 1, 2}, true).tensors, 18u);
  EXPECT_EQ(traffic_of({1, 0, 1, 0}, true).tensors, 8u);
}

TEST(PromisedOutputs, WhereTheCallerTakesPartItNeedsTheValues) {
  EXPECT_EQ(traffic_of({1, 0, 1, 0}).tensors, 4u);
}

// ---- how many messages follow each other -------------------------------------------------------

/// One-way messages that a body waited for one after the other, since computing takes no simulated
/// time, and every message the same.
struct Hops {
  std::int64_t forward = 0, backward = 0;
  friend bool operator==(const Hops&, const Hops&) = default;
};
std::ostream& operator<<(std::ostream& out, const Hops& hops) {
  return out << hops.forward << " forward, " << hops.backward << " backward";
}

constexpr base::Nanoseconds kDelay = base::kMillisecond;

/// The clock sets those apart that leave at once, by a nanosecond each.
std::int64_t hops_of(base::Nanoseconds duration) {
  EXPECT_LT(duration % kDelay, base::kMicrosecond);
  return duration / kDelay;
}

/// Of the last of five steps, with one microbatch of `rows` rows.
Hops hops_of(const std::vector<int>& owners, bool promised, std::int64_t rows) {
  std::map<std::string, int> places;
  for (std::size_t i = 0; i < owners.size(); ++i) places[std::to_string(i)] = owners[i];
  LocalServers servers(1 + *std::max_element(owners.begin(), owners.end()), 1, Time::kSimulated,
                       kDelay);
  servers.options().promised_outputs = promised;
  const auto schedule = schedule::make_simple();
  Hops hops;
  servers.run([&](ModuleServer& server) {
    Row model(static_cast<int>(owners.size()));
    place_modules(server, *model, places);
    for (int step = 0; step < 5; ++step) {
      StepTask task;
      task.schedule = schedule.get();
      task.weights = {1};
      task.body = [&](int) {
        const auto x = at::ones({rows, 2}).requires_grad_();
        const auto begin = servers.now();
        const auto y = model(x);
        EXPECT_EQ(y[0][1].item<float>(), std::ldexp(1.0F, static_cast<int>(owners.size())));
        const auto middle = servers.now();
        server.engine().backward({y}, {at::ones_like(y)}, /*keep_graph=*/false);
        EXPECT_TRUE(x.grad().defined());
        hops = {hops_of(middle - begin), hops_of(servers.now() - middle)};
      };
      server.run_step(task);
    }
  });
  return hops;
}

/// k calls, each of which needs the result of the one before: there, from owner to owner, and back.
/// Through the caller it is there and back for each. So it is with gradients.
TEST(PromisedOutputs, AChainOfKCallsWaitsForOneMessageMoreThanItHasCalls) {
  for (const std::int64_t rows : {1, 8192}) {
    for (int k = 1; k <= 6; ++k) {
      std::vector<int> owners;
      for (int i = 1; i <= k; ++i) owners.push_back(i);
      SCOPED_TRACE(testing::Message() << k << " calls with " << rows << " rows");
      EXPECT_EQ(hops_of(owners, true, rows), (Hops{k + 1, k + 1}));
      EXPECT_EQ(hops_of(owners, false, rows), (Hops{2 * k, 2 * k}));
    }
  }
}

TEST(PromisedOutputs, AChainThatComesBackToARankWaitsForAsManyMessages) {
  EXPECT_EQ(hops_of({1, 2, 1, 2}, true, 1), (Hops{5, 5}));
  EXPECT_EQ(hops_of({1, 2, 1, 2}, false, 1), (Hops{8, 8}));
}

/// What its owner keeps for itself does not travel.
TEST(PromisedOutputs, AChainOnOneRankWaitsForTwoMessages) {
  EXPECT_EQ(hops_of({1, 1, 1, 1}, true, 1), (Hops{2, 2}));
  EXPECT_EQ(hops_of({1, 1, 1, 1}, false, 1), (Hops{8, 8}));
}

}  // namespace promised_outputs_test
}  // namespace smp::server::test
