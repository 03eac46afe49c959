// A library that is not there, or is too old, is named with the package that has it.
#include "d2d/wires/loaded_library.h"

#include <gmock/gmock.h>

#include <string>

#include "d2d/wires/ofi/ofi_library.h"
#include "d2d/wires/ucx/ucx_library.h"
#include "smp/error.h"

namespace smp::d2d {
namespace loaded_library_test {

using testing::AllOf;
using testing::HasSubstr;

template <class Load>
std::string error_of(const Load& load) {
  try {
    load();
  } catch (const PeerLostError& error) {
    return error.what();
  }
  return "none";
}

TEST(LoadedLibrary, ThatIsNotInstalledIsNamedWithItsPackage) {
  EXPECT_THAT(error_of([] { load_ucx("libnone.so.0", "libucs.so.0"); }),
              AllOf(HasSubstr("UCX"), HasSubstr("libnone.so.0"), HasSubstr("Debian: libucx0"),
                    HasSubstr("transport = auto")));
  EXPECT_THAT(error_of([] { load_ofi("libnone.so.1"); }),
              AllOf(HasSubstr("libfabric"), HasSubstr("libnone.so.1"),
                    HasSubstr("Debian: libfabric1"), HasSubstr("transport = auto")));
}

TEST(LoadedLibrary, ThatLacksAFunctionIsNamedWithTheVersionThatHasIt) {
  EXPECT_THAT(error_of([] { load_ucx("libc.so.6", "libucs.so.0"); }),
              AllOf(HasSubstr("this UCX has no ucp_config_read"), HasSubstr("version 1.12")));
  EXPECT_THAT(error_of([] { load_ofi("libc.so.6"); }),
              AllOf(HasSubstr("this libfabric has no fi_getinfo"), HasSubstr("version 1.11")));
}

TEST(LoadedLibrary, ThatIsThereIsLoaded) {
  EXPECT_EQ(error_of([] { ucx(); }), "none");
  EXPECT_EQ(error_of([] { ofi(); }), "none");
}

}  // namespace loaded_library_test
}  // namespace smp::d2d
