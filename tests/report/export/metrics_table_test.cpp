// Numbers of steps as a table.
#include "report/export/metrics_table.h"

#include <gtest/gtest.h>

namespace smp::report {
namespace metrics_table_test {

TEST(MetricsTable, HasARowALine) {
  EXPECT_EQ(metrics_to_csv("{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":\"nan\"}\n"),
            "step,loss\r\n1,2.5\r\n2,nan\r\n");
}

TEST(MetricsTable, NamesMayComeLater) {
  EXPECT_EQ(metrics_to_csv("{\"step\":1}\n{\"step\":2,\"bubble\":0.25}\n{\"bubble\":1}\n{\"st"),
            "step,bubble\r\n1,\r\n2,0.25\r\n,1\r\n");
}

TEST(MetricsTable, QuotesWhatWouldEndACell) {
  EXPECT_EQ(metrics_to_csv(R"({"a,b":"say ""})"), "") << "broken JSON";
  EXPECT_EQ(metrics_to_csv(R"({"a,b":"say \"x\""})"), "\"a,b\"\r\n\"say \"\"x\"\"\"\r\n");
}

TEST(MetricsTable, OfNothingIsEmpty) { EXPECT_EQ(metrics_to_csv(""), ""); }

}  // namespace metrics_table_test
}  // namespace smp::report
