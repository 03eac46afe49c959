#include "config/precision_types.h"

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "config/config.h"

namespace smp::base {
namespace {

using testing::HasSubstr;

/// As settings resolve, with what a precision implies.
Config config_of(const std::string& precision, int microbatches = 4) {
  ConfigInput input;
  input.code.precision = precision;
  input.code.microbatches = microbatches;
  return resolve_config(input).values();
}

double bytes_of(const Config& config) {
  double bytes = 0;
  for (const auto& row : precision_rows(config)) bytes += row.bytes;
  return bytes;
}

std::map<std::string, std::string> types_of(const Config& config) {
  std::map<std::string, std::string> types;
  for (const auto& row : precision_rows(config)) types[row.what] = row.type;
  return types;
}

/// Parameter, gradient, casts or sums of a step, masters, and both means of Adam.
TEST(PrecisionTypes, CountTheBytesOfAParameter) {
  EXPECT_EQ(bytes_of(config_of("fp32")), 4 + 4 + 8);
  EXPECT_EQ(bytes_of(config_of("amp")), 4 + 4 + 2 + 8);
  EXPECT_EQ(bytes_of(config_of("amp", 1)), 4 + 4 + 8);
  EXPECT_EQ(bytes_of(config_of("bf16")), 2 + 2 + 4 + 4 + 8);
  EXPECT_EQ(bytes_of(config_of("fp16")), 2 + 2 + 4 + 4 + 8);
  EXPECT_EQ(bytes_of(config_of("bf16_sr")), 2 + 2 + 4 + 8);
  EXPECT_EQ(bytes_of(config_of("bf16", 1)), 2 + 2 + 4 + 8);
  EXPECT_EQ(bytes_of(config_of("fp16", 1)), 2 + 2 + 2 + 4 + 8);  // unscaled gradients
  auto narrow = config_of("bf16");
  narrow.fp32_grad_accumulation = false;
  EXPECT_EQ(bytes_of(narrow), 2 + 2 + 4 + 8);
}

TEST(PrecisionTypes, TellWhatIsStoredComputedSummedAndSent) {
  const auto amp = types_of(config_of("amp"));
  EXPECT_EQ(amp.at("parameters"), "float32");
  EXPECT_EQ(amp.at("matrix products, by autocast"), "bfloat16");
  const auto half = types_of(config_of("fp16"));
  EXPECT_EQ(half.at("computed in"), "float16");
  EXPECT_EQ(half.at("gradients of replicas, sent"), "float16");
  EXPECT_EQ(half.at("gradients of replicas, summed"), "float32");
  EXPECT_EQ(half.at("masters in the optimizer"), "float32");
  EXPECT_FALSE(types_of(config_of("bf16_sr")).contains("masters in the optimizer"));
}

TEST(PrecisionTypes, AreTheProgramsWithoutASetting) {
  EXPECT_TRUE(precision_rows(Config()).empty());
  EXPECT_EQ(precision_table(Config()), "");
  EXPECT_FALSE(parameter_type("").has_value());
  EXPECT_FALSE(parameter_type("amp").has_value());
  EXPECT_THAT(precision_table(config_of("bf16")), HasSubstr("precision = bf16"));
}

}  // namespace
}  // namespace smp::base
