#include "simulate/machine.h"

#include <gtest/gtest.h>

namespace smp::simulate {
namespace {

Machine four_stages_on(double cores) {
  Machine machine{.stages = 4};
  machine.oversubscribed = {{{0, 1, 2, 3}, cores}};
  return machine;
}

TEST(MachineTest, WhatModulesWaitLeavesCoresToOthers) {
  auto machine = four_stages_on(1);
  machine.set_processor_share(0.5);
  EXPECT_EQ(machine.cores(), 2);
}

TEST(MachineTest, ACoreForEachIsEnough) {
  auto machine = four_stages_on(2);
  machine.set_processor_share(0.5);
  EXPECT_TRUE(machine.oversubscribed.empty());
  EXPECT_EQ(machine.cores(), 0);
}

TEST(MachineTest, ThoseThatAlwaysComputeShareWhatThereIs) {
  auto machine = four_stages_on(2);
  machine.set_processor_share(1);
  EXPECT_EQ(machine.cores(), 2);
}

}  // namespace
}  // namespace smp::simulate
