// api/model/zoo_mpi_test.cpp: every zoo model over real MPI ranks equals one process.
#include "support/own_mpi.h"
#include "zoo/differential.h"

namespace smp::zoo {
namespace zoo_mpi_test {

Session start(const std::string& schedule) {
  static int argc = 0;
  static char* argv[] = {nullptr};
  return init(argc, argv, zoo_config(schedule));
}

/// Every rank gets them.
std::set<std::string> names_on_all_ranks(const Trace& own) {
  const auto names = names_of(own);
  std::set<std::string> all;
  for (int root = 0; root < size(); ++root) {
    const auto part = broadcast(std::vector<std::string>(names.begin(), names.end()), root);
    all.insert(part.begin(), part.end());
  }
  return all;
}

class ZooOverMpi : public testing::TestWithParam<const char*> {};

/// Random numbers are keyed alike on any number of ranks, but only a run of ours can say how.
TEST_P(ZooOverMpi, EqualsOneProcess) {
  std::vector<std::pair<Case, Trace>> references;
  for (auto& c : all_cases()) {
    if (!c.random) references.emplace_back(c, train_in_one_process(c));
  }
  auto session = start(GetParam());
  for (const auto& [c, reference] : references) {
    SCOPED_TRACE(c.name);
    const auto ours = train_distributed(c, random_placement(c, size(), 17));
    expect_equal(ours, reference, 1e-12);
    expect_complete(names_on_all_ranks(ours), reference);
  }
}

/// Each rank gives values to its own part only, and they are those of a model built whole.
TEST(DelayedInitOverMpi, GivesEveryRankTheBitsOfAWholeModel) {
  auto session = start("interleaved");
  for (const auto& c : all_cases()) {
    SCOPED_TRACE(c.name);
    const auto whole = build(c, torch::kDouble);
    DistributedModel model(build(c, torch::kDouble, InitOrder::kAsWritten));
    for (const auto& [path, rank] : random_placement(c, size(), 23)) {
      model.set_partition(path, rank);
    }
    model.place();
    const auto parameters = whole->named_parameters();
    for (const auto& [name, tensor] : model.local_named_parameters()) {
      EXPECT_TRUE(torch::equal(tensor, parameters[name])) << name;
    }
    const auto buffers = whole->named_buffers();
    for (const auto& [name, tensor] : model.local_named_buffers()) {
      EXPECT_TRUE(torch::equal(tensor, buffers[name])) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, ZooOverMpi, testing::Values("interleaved", "simple"));

}  // namespace zoo_mpi_test
}  // namespace smp::zoo
