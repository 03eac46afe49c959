// The libraries of this machine are named with their versions, and with what is missing of them.
#include "d2d/job/wire_libraries.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace smp::d2d {
namespace wire_libraries_test {

using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;

TEST(WireLibraries, OfUcxHaveAVersion) {
  const auto found = look_at_ucx();
  EXPECT_THAT(found.version, MatchesRegex("[0-9]+\\.[0-9]+(\\..*)?")) << found.problem;
  EXPECT_THAT(found.problem, IsEmpty());
}

TEST(WireLibraries, OfLibfabricHaveAVersionAndAProvider) {
  if (std::getenv("FI_PROVIDER") != nullptr) GTEST_SKIP() << "FI_PROVIDER is set";
  const auto found = look_at_ofi();
  EXPECT_THAT(found.version, MatchesRegex("[0-9]+\\.[0-9]+")) << found.problem;
  EXPECT_THAT(found.uses, AnyOf("efa", "tcp;ofi_rxm"));
  EXPECT_THAT(found.problem, IsEmpty());
}

TEST(WireLibraries, ThatDoNotStartSayWhyAndWhatToDo) {
  if (std::getenv("UCX_TLS") != nullptr) GTEST_SKIP() << "UCX_TLS is set";
  ::setenv("UCX_TLS", "carrier_pigeon", 1);  // read anew by each that starts
  const auto found = look_at_ucx();
  ::unsetenv("UCX_TLS");
  EXPECT_THAT(found.version, IsEmpty());
  EXPECT_THAT(found.problem, HasSubstr("; `ucx_info -d` lists what it can use here"));
}

}  // namespace wire_libraries_test
}  // namespace smp::d2d
