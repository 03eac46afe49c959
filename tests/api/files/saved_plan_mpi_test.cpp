// Routes of a run come back with its plan file.
#include <gmock/gmock.h>

#include <fstream>
#include <string>

#include "api/rank/rank.h"
#include "api/rank/recorded_run.h"
#include "api/session/start.h"
#include "base/files.h"
#include "base/log.h"
#include "smp/distributed_model.h"
#include "smp/nn.h"
#include "smp/program/saved_plan.h"
#include "smp/session.h"
#include "smp/step.h"
#include "support/own_mpi.h"
#include "support/refusal.h"

namespace smp {
namespace saved_plan_mpi_test {

using testing::AllOf;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Route = partitioning::RunRecord::Route;

Session session_with(Config config) {
  static int argc = 0;
  static char* argv[] = {nullptr};
  config.plan_cache = "off";
  return start(argc, argv, config, {});
}

/// Returns the routes of the session.
std::vector<Route> routes() { return gather_routes(Rank::current()); }

/// Places a model and saves its plan.
void save(const std::string& path) {
  torch::manual_seed(1);
  DistributedModel<nn::Sequential> model{
      nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4))};
  model.place();
  save_plan(model, path);
}

std::string path_of(const char* name) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return testing::TempDir() + "/saved_plan_mpi_test_" + std::to_string(ranks) + name;
}

TEST(SavedPlansOverMpi, BringRoutesBack) {
  const auto path = path_of(".json");
  struct Way {
    const char* transport;
    bool lend;
  };
  for (const auto& [transport, lend] : {Way{"mpi", true}, Way{"auto", false}, Way{"auto", true}}) {
    std::vector<Route> first;
    {
      Config config;
      config.transport = transport;
      config.lend_tensors = lend;
      config.microbatches = 3;
      const auto session = session_with(config);
      first = routes();
      save(path);
    }
    ASSERT_THAT(first, Not(IsEmpty()));
    Config other;
    other.plan_file = path;
    const auto session = session_with(other);
    EXPECT_EQ(routes(), first);
    EXPECT_EQ(num_microbatches(), 3);
    if (std::string(transport) == "mpi") {
      EXPECT_THAT(first, Each(Field(&Route::over, "up to 4096 bytes mpi, above mpi")));
    } else {
      const auto lent = HasSubstr("from 65536 bytes lent");
      EXPECT_THAT(first[0].over, HasSubstr("host_shm"));
      if (!lend) {
        EXPECT_THAT(first[0].over, Not(lent));
      }
    }
  }
}

/// Puts another text in the place of one in the file.
void change(const std::string& path, const std::string& from, const std::string& to) {
  auto text = base::read_file(path);
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  base::write_file(path, text);
}

TEST(SavedPlansOverMpi, TakeNoPathThatTheRunDidNotTake) {
  const auto path = path_of("_refused.json");
  {
    Config config;
    config.transport = "mpi";
    const auto session = session_with(config);
    save(path);
    barrier();
    // As if the first run had had a choice, and a machine had refused it shared memory.
    if (rank() == 0) change(path, "\"transport\": \"mpi\"", "\"transport\": \"auto\"");
    barrier();
  }
  Config config;
  config.plan_file = path;
  {
    const auto session = session_with(config);
    EXPECT_THAT(routes(), Each(Field(&Route::over, "up to 4096 bytes mpi, above mpi")));
    barrier();
    if (rank() == 0) change(path, "above mpi", "above ofi");
    barrier();
  }
  EXPECT_THAT(refusal<UsageError>([&] { session_with(config); }),
              AllOf(HasSubstr("went up to 4096 bytes mpi, above ofi, here they go up to 4096 bytes "
                              "mpi, above mpi"),
                    HasSubstr("take \"routes\" out")));
  config.transport = "ucx";
  EXPECT_THAT(refusal<UsageError>([&] { session_with(config); }),
              HasSubstr("transport = \"ucx\" (Config in code) contradicts transport = \"auto\""));
  // A program whose last start was refused ends with 1.
  config = {};
  config.transport = "mpi";
  const auto session = session_with(config);
}

}  // namespace saved_plan_mpi_test
}  // namespace smp
