// Messages by how far they go, and at the ports of a network, against times worked out by hand.
#include "simulate/network.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "simulate/simulate_chain.h"

namespace smp::simulate {
namespace {

using base::kMillisecond;
using testing::ElementsAre;
using Places = std::vector<Machine::Place>;

constexpr std::int64_t kBytes = 8'000'000;  // 8 ms at the network's 1 GB/s

/// Stages whose messages are free but for their bytes, and a network of 1 GB/s.
Machine machine_of(const Places& places) {
  auto machine = ideal_machine(static_cast<int>(places.size()));
  machine.places = places;
  machine.network = {0, 1e9};
  machine.across_sockets = {0, 2e9};
  return machine;
}

/// A chain, a module a stage; `bytes` go into each module but the first, none come back.
SimulatedStep forward(const std::vector<double>& seconds, std::int64_t bytes,
                      const Machine& machine, int microbatches) {
  auto model = traced_chain(seconds);
  for (std::size_t i = 2; i < model.trace.calls.size(); ++i) {
    model.trace.calls[i].input_bytes = bytes;
    model.trace.calls[i].output_bytes = i + 1 < model.trace.calls.size() ? bytes : 0;
  }
  return simulate_with(model, stage_each(model), machine, 0,
                       {.microbatches = microbatches, .forward_only = true, .record = true});
}

base::Nanoseconds start_of(const SimulatedStep& step, int stage, int span = 0) {
  return step.timeline.at(stage).spans.at(span).start;
}

TEST(Network, DirectLinksAreAsFastAsTheSlowerEndAndOfTheirNode) {
  auto machine = machine_of({{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {1, 0, 0}});
  machine.bytes_per_second = 1e9;
  machine.direct_links = {8e9, 4e9, 0, 8e9};
  const auto step = forward({1e-3, 1e-3, 1e-3, 1e-3}, kBytes, machine, 1);
  EXPECT_EQ(start_of(step, 1), (1 + 2) * kMillisecond);
  EXPECT_EQ(start_of(step, 2), (3 + 1 + 8) * kMillisecond) << "by the host";
  EXPECT_EQ(start_of(step, 3), (12 + 1 + 8) * kMillisecond) << "by the network";
}

TEST(Network, LinksOfPairsHoldInsteadOfAllOthersWithinNodes) {
  auto machine = machine_of({{0, 0, 0}, {0, 1, 0}, {0, 0, 0}, {1, 0, 0}});
  machine.direct_links = {1e9, 1e9, 1e9, 1e9};
  machine.pairs.assign(16, {0, 1e9});
  machine.pairs[0 * 4 + 1] = {2e-3, 4e9};
  machine.pairs[1 * 4 + 2] = {1e-3, 8e9};
  machine.pairs[2 * 4 + 3] = {1, 1};
  const auto step = forward({1e-3, 1e-3, 1e-3, 1e-3}, kBytes, machine, 1);
  EXPECT_EQ(start_of(step, 1), (1 + 2 + 2) * kMillisecond);
  EXPECT_EQ(start_of(step, 2), (5 + 1 + 1 + 1) * kMillisecond);
  EXPECT_EQ(start_of(step, 3), (8 + 1 + 8) * kMillisecond) << "by the network";
  EXPECT_EQ(machine.near_bandwidth(1, 2), 8e9);
}

TEST(Network, OneMessageTakesLatencyAndBytesOfItsLevel) {
  const auto arrival = [](Machine::Place second) {
    auto machine = machine_of({{0, 0, 0}, second});
    machine.latency = 1e-3;
    machine.bytes_per_second = 4e9;
    machine.across_sockets.latency = 5e-3;
    machine.network.latency = 10e-3;
    return start_of(forward({1e-3, 1e-3}, kBytes, machine, 1), 1);
  };
  EXPECT_EQ(arrival({0, 0, 0}), (1 + 1 + 2) * kMillisecond);
  EXPECT_EQ(arrival({0, 0, 1}), (1 + 1 + 2) * kMillisecond) << "a port is of the network only";
  EXPECT_EQ(arrival({0, 1, 0}), (1 + 5 + 4) * kMillisecond);
  EXPECT_EQ(arrival({1, 0, 0}), (1 + 10 + 8) * kMillisecond);
  EXPECT_EQ(arrival({1, 1, 0}), (1 + 10 + 8) * kMillisecond) << "the network is farther";
}

/// When `microbatches` requests to stage 1, which all leave at once, have run there in no time.
double last_arrival(const Machine& machine, int microbatches) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  model.trace.calls[model.call(root, 1e-6)].input_bytes = kBytes;
  return simulate_with(model, {0, 1}, machine, 0,
                       {.microbatches = microbatches, .forward_only = true})
      .seconds;
}

TEST(Network, MessagesOfOnePortGoOneAfterTheOther) {
  const auto machine = machine_of({{0, 0, 0}, {1, 0, 0}});
  for (const int count : {1, 2, 3, 7}) {
    EXPECT_NEAR(last_arrival(machine, count), count * 8e-3, 1e-5) << count << " at once";
  }
  auto near = machine;
  near.places = {{0, 0, 0}, {0, 1, 0}};
  EXPECT_NEAR(last_arrival(near, 7), 4e-3, 1e-5) << "within a node nothing queues";
}

TEST(Network, LatencyIsPaidOnceByMessagesThatFollowEachOther) {
  auto machine = machine_of({{0, 0, 0}, {1, 0, 0}});
  machine.network.latency = 5e-3;
  EXPECT_NEAR(last_arrival(machine, 3), 5e-3 + 3 * 8e-3 + 5e-3, 1e-5) << "and by the answer";
}

// ---- ports -------------------------------------------------------------------------------------

struct Message {
  int from, to;
  std::int64_t bytes;
  base::Nanoseconds time;  // at which it is ready to leave
};

/// When each message comes.
std::vector<base::Nanoseconds> arrivals(const Machine& machine,
                                        const std::vector<Message>& messages) {
  StepProgram program;
  program.bodies = {0};
  for (const Message& message : messages) program.tasks.emplace_back().stage = message.to;
  const auto schedule = schedule::make_simple();
  const SimulationOptions options{.microbatches = 1, .schedule = schedule.get()};
  StepState step(program, machine, options);
  Network network(step);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& [from, to, bytes, time] = messages[i];
    network.send(from, static_cast<int>(i), bytes, time);
  }
  std::vector<base::Nanoseconds> times(messages.size());
  while (!step.events.empty()) {
    const auto event = step.events.take();
    if (event.moment == Moment::kArrival) {
      times.at(event.fiber) = event.time;
    } else {
      network.proceed(event);
    }
  }
  return times;
}

constexpr auto kOnce = 8 * kMillisecond, kTwice = 16 * kMillisecond;

TEST(Network, TwoAtOnceOverOnePortTakeTwiceAndOverTwoOnce) {
  const Places shared = {{0, 0, 0}, {0, 0, 0}, {1, 0, 0}, {2, 0, 0}};
  EXPECT_THAT(arrivals(machine_of(shared), {{0, 2, kBytes, 0}, {1, 3, kBytes, 0}}),
              ElementsAre(kOnce, kTwice))
      << "one adapter of the senders";
  const Places own = {{0, 0, 0}, {0, 0, 1}, {1, 0, 0}, {2, 0, 0}};
  EXPECT_THAT(arrivals(machine_of(own), {{0, 2, kBytes, 0}, {1, 3, kBytes, 0}}),
              ElementsAre(kOnce, kOnce));
  EXPECT_THAT(arrivals(machine_of(own), {{2, 0, kBytes, 0}, {3, 0, kBytes, 0}}),
              ElementsAre(kOnce, kTwice))
      << "one adapter of the receiver";
  EXPECT_THAT(arrivals(machine_of(own), {{2, 0, kBytes, 0}, {3, 1, kBytes, 0}}),
              ElementsAre(kOnce, kOnce));
  EXPECT_THAT(arrivals(machine_of(own), {{0, 2, kBytes, 0}, {2, 0, kBytes, 0}}),
              ElementsAre(kOnce, kOnce))
      << "both ways at once";
}

/// What waits at the receiver's port does not hold up the sender's.
TEST(Network, AFullReceiverHoldsUpNobodyElse) {
  const Places places = {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}, {3, 0, 0}};
  EXPECT_THAT(
      arrivals(machine_of(places), {{1, 0, kBytes, 0}, {2, 0, kBytes, 0}, {2, 3, kBytes, 0}}),
      ElementsAre(kOnce, kTwice, kTwice));
}

/// The same by lists in place of events: first who leaves each port, then who comes to each.
std::vector<base::Nanoseconds> arrivals_by_lists(const Machine& machine,
                                                 const std::vector<Message>& messages) {
  std::vector<std::size_t> order(messages.size());
  std::iota(order.begin(), order.end(), 0);
  const auto passing = [&](std::size_t i) {
    return static_cast<base::Nanoseconds>(messages[i].bytes);  // 1 GB/s
  };
  std::vector<base::Nanoseconds> times(messages.size());
  const auto pass = [&](const auto& place_of, base::Nanoseconds added) {
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return times[a] < times[b]; });
    std::map<std::pair<int, int>, base::Nanoseconds> free_at;
    for (const auto i : order) {
      const auto& place = machine.places[place_of(messages[i])];
      auto& free = free_at[{place.node, place.port}];
      const auto begin = std::max(free, times[i]);
      free = begin + passing(i);
      times[i] = begin + (added < 0 ? passing(i) : added);
    }
  };
  for (const auto i : order) times[i] = messages[i].time;
  pass([](const Message& message) { return message.from; },
       std::llround(machine.network.latency * base::kSecond));
  pass([](const Message& message) { return message.to; }, -1);
  return times;
}

RC_GTEST_PROP(Network, EqualsListsOfMessages, ()) {
  auto machine = machine_of({{0, 0, 0}, {0, 0, 1}, {1, 0, 0}, {1, 0, 0}, {2, 0, 0}, {3, 0, 0}});
  machine.network.latency = 100e-9 * *rc::gen::inRange(0, 30);
  const auto stage = rc::gen::inRange(0, 6);
  const auto messages = *rc::gen::container<std::vector<Message>>(
      rc::gen::construct<Message>(stage, stage, rc::gen::inRange<std::int64_t>(0, 5000),
                                  rc::gen::inRange<base::Nanoseconds>(0, 9000)));
  std::vector<Message> between_nodes;
  for (const auto& message : messages) {
    if (machine.on_network(message.from, message.to)) between_nodes.push_back(message);
  }
  RC_ASSERT(arrivals(machine, between_nodes) == arrivals_by_lists(machine, between_nodes));
}

// ---- one level ---------------------------------------------------------------------------------

/// Places without a network between them change nothing, to the nanosecond and the order of events.
TEST(Network, StagesOfOneSocketAreAsWithoutPlaces) {
  for (const int cap : {0, 3}) {
    auto model = traced_chain({2e-3, 1e-3, 3e-3, 1e-3});
    for (auto& call : model.trace.calls) call.input_bytes = call.output_bytes = 1'000'000;
    Machine machine;
    machine.stages = 4;
    const SimulationOptions options{.microbatches = 6, .jitter = 0.2};
    const auto without = simulate_with(model, stage_each(model), machine, cap, options);
    machine.places.assign(4, {5, 1, 0});
    const auto with = simulate_with(model, stage_each(model), machine, cap, options);
    EXPECT_EQ(with.seconds, without.seconds);
    EXPECT_EQ(with.busy, without.busy);
    EXPECT_EQ(with.peak_activations, without.peak_activations);
  }
}

/// Messages of 5 ms that every module sends on: each node has its own adapter, or two share one.
TEST(Network, AStepIsLongerWhereStagesShareAnAdapter) {
  auto model = traced_chain({2e-3, 1e-3, 3e-3, 1e-3});
  for (auto& call : model.trace.calls) call.input_bytes = call.output_bytes = 1'000'000;
  const auto seconds = [&](const Places& places) {
    auto machine = machine_of(places);
    machine.network.bytes_per_second = 2e8;
    return simulate_with(model, stage_each(model), machine, 0, {.microbatches = 6}).seconds;
  };
  const double apart = seconds({{0, 0, 0}, {1, 0, 0}, {2, 0, 0}, {3, 0, 0}});
  EXPECT_NEAR(apart, 0.116, 1e-9);
  EXPECT_NEAR(seconds({{0, 0, 0}, {1, 0, 0}, {0, 0, 1}, {1, 0, 1}}), apart, 1e-9)
      << "two nodes of two adapters";
  EXPECT_NEAR(seconds({{0, 0, 0}, {1, 0, 0}, {0, 0, 0}, {1, 0, 0}}), 0.139, 1e-9)
      << "the answers of stage 2 wait behind the requests of stage 0";
}

}  // namespace
}  // namespace smp::simulate
