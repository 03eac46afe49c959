// Traces of a trial process: whole, or refused.
#include "trial/trace_bytes.h"

#include <gtest/gtest.h>

#include "smp/error.h"

namespace smp::partitioning {
namespace trace_bytes_test {

simulate::Trace example() {
  simulate::Trace trace;
  trace.calls.push_back({.module = 3, .caller = -1, .after = {.seconds = 0.5}, .input_bytes = 7});
  trace.body_after = {.seconds = 0.25, .activation_bytes = 9, .gradient_bytes = 4};
  trace.loss_call = 0;
  trace.foreign_uses.push_back({.module = 2, .parameter = 5});
  trace.buffer_uses.push_back({.module = 1, .holder = 4, .name = "embed.table"});
  trace.shared.push_back({.bytes = 12, .keepers = {{.call = 0, .before = true}}});
  trace.uses.push_back({.tensor = 3, .bytes = 14, .at = {.call = 0}});
  trace.state.push_back(
      {.module = 6, .kind = simulate::StateKind::kOrdered, .what = "writes 'ema'"});
  trace.source = simulate::CostSource::kMeasured;
  trace.backward_ratio = 1.5;
  trace.weight_share = 0.25;
  trace.processor_share = 0.125;
  trace.calls[0].after.backward_seconds = 0.75;
  trace.device = "h100";
  trace.profiles.push_back({.device = "cpu", .speed = 0.5, .times = {{1, 2, 0.5}, {3, 4, 1}}});
  return trace;
}

TEST(TraceBytes, GiveBackEveryMember) {
  const auto traces = traces_from_bytes(traces_to_bytes({example(), {}}));
  ASSERT_EQ(traces.size(), 2u);
  const auto& trace = traces[0];
  ASSERT_EQ(trace.calls.size(), 1u);
  EXPECT_EQ(trace.calls[0].module, 3);
  EXPECT_EQ(trace.calls[0].after.seconds, 0.5);
  EXPECT_EQ(trace.calls[0].input_bytes, 7);
  EXPECT_EQ(trace.body_after.gradient_bytes, 4);
  EXPECT_EQ(trace.loss_call, 0);
  EXPECT_EQ(traces[1].loss_call, -1);
  ASSERT_EQ(trace.foreign_uses.size(), 1u);
  EXPECT_EQ(trace.foreign_uses[0].parameter, 5);
  ASSERT_EQ(trace.buffer_uses.size(), 1u);
  EXPECT_EQ(trace.buffer_uses[0].holder, 4);
  EXPECT_EQ(trace.buffer_uses[0].name, "embed.table");
  ASSERT_EQ(trace.shared.size(), 1u);
  EXPECT_EQ(trace.shared[0].bytes, 12);
  ASSERT_EQ(trace.shared[0].keepers.size(), 1u);
  EXPECT_TRUE(trace.shared[0].keepers[0].before);
  EXPECT_EQ(trace.uses, example().uses);
  ASSERT_EQ(trace.state.size(), 1u);
  EXPECT_EQ(trace.state[0].kind, simulate::StateKind::kOrdered);
  EXPECT_EQ(trace.state[0].what, "writes 'ema'");
  EXPECT_EQ(trace.source, simulate::CostSource::kMeasured);
  EXPECT_EQ(trace.backward_ratio, 1.5);
  EXPECT_EQ(trace.weight_share, 0.25);
  EXPECT_EQ(trace.processor_share, 0.125);
  EXPECT_EQ(trace.calls[0].after.backward_seconds, 0.75);
  EXPECT_EQ(trace.device, "h100");
  ASSERT_EQ(trace.profiles.size(), 1u);
  EXPECT_EQ(trace.profiles[0].device, "cpu");
  EXPECT_EQ(trace.profiles[0].speed, 0.5);
  ASSERT_EQ(trace.profiles[0].times.size(), 2u);
  EXPECT_EQ(trace.profiles[0].times[1].backward, 4);
  EXPECT_TRUE(traces[1].calls.empty());
}

TEST(TraceBytes, ThatEndEarlyAreRefused) {
  const auto bytes = traces_to_bytes({example()});
  for (const std::size_t size : {std::size_t{0}, std::size_t{9}, bytes.size() - 1}) {
    EXPECT_THROW(static_cast<void>(traces_from_bytes(bytes.substr(0, size))), InternalError)
        << size;
  }
  EXPECT_THROW(static_cast<void>(traces_from_bytes(bytes + "x")), InternalError);
}

}  // namespace trace_bytes_test
}  // namespace smp::partitioning
