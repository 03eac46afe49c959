// A rank whose machine refuses memory that processes share says so, and all go on without it.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "d2d/channel/channel.h"
#include "d2d/job/job_wires.h"
#include "d2d/job/machine_wires.h"
#include "d2d/job/shared_mpi_session.h"
#include "d2d/lend/heap_allocator.h"

namespace smp::d2d {
namespace unshared_memory_mpi_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr GlobalRank kRefused(1);
constexpr rlim_t kMiB = 1 << 20;

/// While it lives, kRefused may write no longer files, memory that processes share among them.
class ShortFiles {
 public:
  explicit ShortFiles(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    if (shared_mpi_session().rank() == kRefused) ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~ShortFiles() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  ShortFiles(const ShortFiles&) = delete;
  ShortFiles& operator=(const ShortFiles&) = delete;

 private:
  rlimit before_{};
};

/// As a job connects. All ranks reach each other over `path`; what this one warned about.
std::vector<std::string> warnings_of(RouteOptions options, const std::string& path) {
  std::vector<std::string> warnings;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  const auto& session = shared_mpi_session();
  Channel channel(fastest_routes(session, options));
  for (const GlobalRank peer : channel.routes().members()) {
    if (peer == session.rank()) continue;
    EXPECT_EQ(channel.routes().path(peer), path);
  }
  EXPECT_TRUE(channel.close(60 * base::kSecond));
  return warnings;
}

TEST(UnsharedMemory, IsToldByTheRankThatIsRefusedItAndMpiCarriesAll) {
  const ShortFiles limit(kMiB);
  const auto warnings = warnings_of({}, "mpi");
  if (shared_mpi_session().rank() != kRefused) {
    EXPECT_THAT(warnings, IsEmpty());
    return;
  }
  EXPECT_THAT(warnings,
              ElementsAre(AllOf(HasSubstr("cannot share memory, so the whole job uses MPI"),
                                HasSubstr("File too large ("), HasSubstr("allows 1 MiB)"),
                                HasSubstr("; remedy: `ulimit -f unlimited`"),
                                HasSubstr("; or transport = mpi if that is wanted"))));
}

TEST(UnsharedMemory, IsNotMissedWhereItIsNotWanted) {
  const ShortFiles limit(kMiB);
  EXPECT_THAT(warnings_of(route_options("mpi", true), "mpi"), IsEmpty());
}

TEST(UnsharedMemory, IsLoggedWhereNobodyTakesTheWarning) {
  const ShortFiles limit(kMiB);
  const base::LogCapture log;
  EXPECT_EQ(connect_host_shm(shared_mpi_session()), nullptr);
  const bool said = log.text().find("cannot share memory") != std::string::npos;
  EXPECT_EQ(said, shared_mpi_session().rank() == kRefused);
}

TEST(UnsharedMemory, IsAskedForByTheTransportThatHasIt) {
  const auto options = route_options("ucx", false);
  EXPECT_TRUE(options.shared_memory);
  EXPECT_FALSE(options.lend);
  EXPECT_EQ(options.network, Network::kUcx);
  EXPECT_EQ(route_options("ofi", true).network, Network::kOfi);
  EXPECT_EQ(route_options("auto", true).network, Network::kMpi);
  EXPECT_TRUE(route_options("auto", true).lend);
  EXPECT_FALSE(route_options("mpi", true).shared_memory);
}

/// Enough for rings, and not for all tensors. From then on this process lends nothing, so it is
/// last.
TEST(UnsharedMemory, OfTensorsLeavesRings) {
  const auto& session = shared_mpi_session();
  const ShortFiles limit(256 * kMiB);
  const bool too_late = session.rank() == kRefused && HeapAllocator::install() != nullptr;
  const auto late = session.all_gather(too_late ? "late" : "")[kRefused.index()];
  if (!late.empty()) GTEST_SKIP() << "tensors of this process are in a heap already";
  const auto warnings = warnings_of({}, "host_shm");
  if (session.rank() != kRefused) {
    EXPECT_THAT(warnings, IsEmpty());
    return;
  }
  EXPECT_THAT(warnings,
              ElementsAre(AllOf(HasSubstr("copy large tensors instead of lending them: "),
                                HasSubstr("allows 256 MiB)"),
                                HasSubstr("; or lend_tensors = false if that is wanted"))));
}

}  // namespace unshared_memory_mpi_test
}  // namespace smp::d2d
