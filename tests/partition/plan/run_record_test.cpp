// How a run trained, in the file of its plan.
#include "partition/plan/run_record.h"

#include <gmock/gmock.h>

#include "partition/plan/plan_example.h"
#include "support/refusal.h"

namespace smp::partitioning {
namespace run_record_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

RunRecord example() {
  RunRecord run;
  run.settings = R"({"microbatches":8,"pipeline":"file:own.txt"})";
  run.lists = "smp-schedule 1\nmicrobatches 8\nrank 0: F0 B0\n";
  run.ranks = 4;
  run.routes = {{0, "1-2", "host_shm"}, {0, "3", "mpi"}, {1, "0, 2-3", "mpi"}};
  return run;
}

TEST(RunRecord, SurvivesTheFileOfItsPlan) {
  const auto plan = t5_example().plan();
  const auto text = plan_text(plan, example());
  EXPECT_THAT(text, AllOf(HasSubstr("\"version\": 2"), HasSubstr("\n      \"microbatches\": 8,\n"),
                          HasSubstr("\n      {\"from\":0,\"to\":\"3\",\"over\":\"mpi\"}")));
  EXPECT_EQ(find_run_record(text, "plan.json"), example());
  const auto back = PartitionPlan::from_json(text, "plan.json");
  EXPECT_EQ(back.to_json(), plan.to_json());
  ASSERT_TRUE(back.summary());
}

TEST(RunRecord, IsNotInOlderFilesAndOthers) {
  const auto text = t5_example().plan().to_json();
  EXPECT_THAT(text, HasSubstr("\"version\": 1"));
  EXPECT_FALSE(find_run_record(text, "plan.json"));
  EXPECT_FALSE(find_run_record(R"({"run": 1})", "pins.json")) << "a module of that name";
}

TEST(RunRecord, TellsTheRoutesOfARank) {
  EXPECT_THAT(example().routes_from(0),
              UnorderedElementsAre(Pair(1, "host_shm"), Pair(2, "host_shm"), Pair(3, "mpi")));
  EXPECT_THAT(example().routes_from(1),
              UnorderedElementsAre(Pair(0, "mpi"), Pair(2, "mpi"), Pair(3, "mpi")));
  EXPECT_TRUE(example().routes_from(2).empty());
  EXPECT_EQ(ranks_text({0, 2, 3, 4, 7}), "0, 2-4, 7");
  EXPECT_EQ(ranks_text({}), "");
}

TEST(RunRecord, IsRefusedIfItIsBroken) {
  const auto with = [](const std::string& run) {
    return refusal<UsageError>([&] {
      (void)find_run_record(R"({"format": "smp-plan", "run": )" + run + "}", "plan.json");
    });
  };
  EXPECT_THAT(with("3"), HasSubstr("plan.json: \"run\""));
  EXPECT_THAT(with("{}"), HasSubstr("settings"));
  EXPECT_THAT(with(R"({"settings": [], "ranks": 1})"), HasSubstr("must map keys to values"));
  EXPECT_THAT(with(R"({"settings": {}})"), HasSubstr("ranks"));
  for (const char* to : {"", "x", "1-", "3-1", "1,2", "1, ", "-1", "1-9999999"}) {
    EXPECT_THAT(with(std::string(R"({"settings": {}, "ranks": 2, "routes": [{"from": 0, "to": ")") +
                     to + R"(", "over": "mpi"}]})"),
                AllOf(HasSubstr("plan.json: \"run\""), HasSubstr("expected ranks")))
        << to;
  }
}

}  // namespace run_record_test
}  // namespace smp::partitioning
