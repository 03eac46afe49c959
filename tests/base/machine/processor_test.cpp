// What a machine calls its processor.
#include "base/machine/processor.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace smp::base {
namespace {

std::string name_in(const std::string& cpuinfo) {
  const auto path = testing::TempDir() + "cpuinfo";
  std::ofstream(path) << cpuinfo;
  auto name = processor_name(path);
  std::remove(path.c_str());
  return name;
}

TEST(Processor, HasTheNameOfItsModel) {
  EXPECT_EQ(name_in("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654: 96-Core\n\n"
                    "processor\t: 1\nmodel name\t: another\n"),
            "AMD EPYC 9654: 96-Core");
}

TEST(Processor, HasTheNameOfItsKindWhereTheSystemSaysNoMore) {
  const auto kind = name_in("processor\t: 0\nBogoMIPS\t: 50.00\n");
  EXPECT_FALSE(kind.empty());
  EXPECT_EQ(kind.find(' '), std::string::npos) << kind;
  EXPECT_EQ(processor_name("/no/such/file"), kind);
}

}  // namespace
}  // namespace smp::base
