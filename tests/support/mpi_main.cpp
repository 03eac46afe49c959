// main() of the tests that mpirun starts. Rank 0 reports as usual; the other ranks speak only of
// failures. MPI itself belongs to the tests.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

namespace {

// The rank as mpirun gives it, known before MPI is started.
std::string rank_name() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr ? "0" : rank;
}

// Prints failed assertions only, each led by its rank.
class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    std::cerr << "[rank " << rank_name() << "] "
              << (test == nullptr ? "" : std::string(test->test_suite_name()) + "." + test->name())
              << " failed at " << (result.file_name() == nullptr ? "" : result.file_name()) << ":"
              << result.line_number() << "\n"
              << result.message() << std::endl;
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (rank_name() != "0") {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter);
  }
  return RUN_ALL_TESTS();
}
