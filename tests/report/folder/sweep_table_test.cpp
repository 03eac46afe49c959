// Runs with different settings beside each other.
#include "report/folder/sweep_table.h"

#include <gmock/gmock.h>

#include <limits>

namespace smp::report {
namespace {

using testing::HasSubstr;
using testing::Not;

RunResult result(double seconds, double loss) {
  RunResult made;
  made.step_seconds = seconds;
  made.bubble = 0.125;
  made.loss = loss;
  made.memory = 50 << 20;
  made.rates = {{"tokens/s", 4000.5}};
  return made;
}

/// Two runs that ended well, and one that could not start.
Sweep small_sweep() {
  Sweep sweep{.keys = {"microbatches", "pipeline"}, .runs = {}};
  sweep.runs.push_back({{"2", "simple"}, result(0.2, 5.125), 4.1, "", "s/001/t5-1", "s/001.log"});
  sweep.runs.push_back({{"2", "gpipe"}, {}, 0.9, "unknown pipeline \"gpipe\", use", "", "s/2.log"});
  sweep.runs.push_back({{"4", "simple"},
                        result(0.1, std::numeric_limits<double>::quiet_NaN()),
                        3.1,
                        "",
                        "s/003/t5-1",
                        "s/003.log"});
  return sweep;
}

TEST(SweepTable, HasARowForEachRunInOrder) {
  EXPECT_EQ(sweep_table(small_sweep(), 100),
            R"(microbatches  pipeline  a step  tokens/s   loss  bubble    memory  whole job
2             simple    200 ms      4000  5.125    12 %  50.0 MiB     4.10 s
2             gpipe          -         -      -       -         -     900 ms
              failed: unknown pipeline "gpipe", use
4             simple    100 ms      4000    nan    12 %  50.0 MiB     3.10 s
fastest: microbatches 4, pipeline simple
)");
}

TEST(SweepTable, NamesNoFastestRunThatFailedOrIsAlone) {
  auto sweep = small_sweep();
  sweep.runs[2].failure = "not done after 600 s";
  EXPECT_THAT(sweep_table(sweep, 100), HasSubstr("fastest: microbatches 2, pipeline simple\n"));
  sweep.runs[0].failure = "the same";
  EXPECT_THAT(sweep_table(sweep, 100), Not(HasSubstr("fastest")));
  sweep = small_sweep();
  sweep.runs.resize(1);
  EXPECT_THAT(sweep_table(sweep, 100), Not(HasSubstr("fastest")));
}

TEST(SweepTable, IsTheSameAsCsv) {
  EXPECT_EQ(sweep_to_csv(small_sweep()),
            "smp.microbatches,smp.pipeline,step_seconds,tokens/"
            "s,loss,bubble,memory_bytes,job_seconds,failure,"
            "folder,log\r\n"
            "2,simple,0.2,4000.5,5.125,0.125,52428800,4.1,,s/001/t5-1,s/001.log\r\n"
            "2,gpipe,,,,,,0.9,\"unknown pipeline \"\"gpipe\"\", use\",,s/2.log\r\n"
            "4,simple,0.1,4000.5,nan,0.125,52428800,3.1,,s/003/t5-1,s/003.log\r\n");
}

TEST(SweepTable, IsTheSameAsJson) {
  auto sweep = small_sweep();
  sweep.runs.erase(sweep.runs.begin(), sweep.runs.begin() + 1);
  EXPECT_EQ(sweep_to_json(sweep), R"({
  "format": "smp-sweep",
  "version": 1,
  "runs": [
    {
      "settings": {
        "microbatches": "2",
        "pipeline": "gpipe"
      },
      "step_seconds": null,
      "rates": {
        "tokens/s": null
      },
      "loss": null,
      "bubble": null,
      "memory_bytes": null,
      "job_seconds": 0.9,
      "failure": "unknown pipeline \"gpipe\", use",
      "folder": null,
      "log": "s/2.log"
    },
    {
      "settings": {
        "microbatches": "4",
        "pipeline": "simple"
      },
      "step_seconds": 0.1,
      "rates": {
        "tokens/s": 4000.5
      },
      "loss": "nan",
      "bubble": 0.125,
      "memory_bytes": 52428800,
      "job_seconds": 3.1,
      "failure": null,
      "folder": "s/003/t5-1",
      "log": "s/003.log"
    }
  ]
}
)");
}

/// The first step begins cold, and the last loss counts, whatever it is.
TEST(SweepTable, TakesWhatTheRunsFilesTell) {
  RunFacts facts;
  add_metrics(facts,
              R"({"step":1,"loss":6.5,"tokens_per_second":1,"step_seconds":9.5,"bubble":0.9}
{"step":2,"loss":6.25,"tokens_per_second":4000,"step_seconds":0.2,"bubble":0.3}
{"step":3,"loss":"nan","tokens_per_second":5000,"step_seconds":0.1,"bubble":0.2}
{"step":4,"loss":"inf","tokens_per_second":3000,"step_seconds":0.3,"bubble":0.4}
)");
  facts.memory = {40 << 20, 0, 50 << 20};
  const auto made = result_of(facts);
  EXPECT_EQ(made.step_seconds, 0.2);
  EXPECT_EQ(made.bubble, 0.3);
  EXPECT_EQ(made.loss, std::numeric_limits<double>::infinity());
  EXPECT_EQ(made.memory, 50 << 20);
  EXPECT_EQ(made.rates, (NamedNumbers{{"tokens/s", 4000}}));
  const auto empty = result_of({});
  EXPECT_FALSE(empty.step_seconds || empty.bubble || empty.loss || empty.memory);
}

}  // namespace
}  // namespace smp::report
