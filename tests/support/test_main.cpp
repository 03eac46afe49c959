// main() of all test programs, of which each holds the tests of a layer. `--source NAME` runs those
// of NAME.cpp; tests that a header defines belong to the source that instantiates them under its
// own name. Under mpirun rank 0 reports as usual; the other ranks speak only of failures.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
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
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  void OnTestEnd(const testing::TestInfo&) override { test_.clear(); }
  // gtest holds its lock meanwhile: it must not be asked anything.
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "[rank " << rank_name() << "] " << test_ << " failed at "
              << (result.file_name() == nullptr ? "" : result.file_name()) << ":"
              << result.line_number() << "\n"
              << result.message() << std::endl;
  }

 private:
  std::string test_;
};

// The source, without folder and ending, that a test belongs to.
std::string source_of(const testing::TestInfo& test) {
  const std::filesystem::path file(test.file());
  if (file.extension() == ".cpp") return file.stem();
  const std::string suite = test.test_suite_name();
  return suite.substr(0, suite.find('/'));
}

// A filter that lets the tests of one source through; empty when there are none. Nothing is left
// out by all sources: a test that belongs to none ends the program.
std::string filter_of(const std::string& source) {
  std::string filter;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      const std::string owner = source_of(test);
      if (!owner.ends_with("_test")) {
        std::cerr << suite.name() << " is of no source; instantiate it as the name of one\n";
        std::exit(EXIT_FAILURE);
      }
      if (owner != source) continue;
      filter += (filter.empty() ? "" : ":") + std::string(suite.name()) + "." + test.name();
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::string(argv[1]) == "--source") {
    const std::string filter = filter_of(argv[2]);
    if (filter.empty()) {
      std::cerr << "no test of this program is in " << argv[2] << ".cpp\n";
      return EXIT_FAILURE;
    }
    if (testing::GTEST_FLAG(filter) == "*") testing::GTEST_FLAG(filter) = filter;
  } else if (argc > 1) {
    std::cerr << "unknown argument " << argv[1] << "; --source NAME or a flag of GoogleTest\n";
    return EXIT_FAILURE;
  }
  if (rank_name() != "0") {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter);
  }
  return RUN_ALL_TESTS();
}
