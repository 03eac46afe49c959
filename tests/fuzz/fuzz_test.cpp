// Random programs, on random ranks, with random delays: each equals plain LibTorch, or is refused
// with a message of fuzz/refusals.cpp.
//
//   SMP_FUZZ_PROGRAMS=100000 SMP_FUZZ_SEED=1000 ...   so many programs, the first with this seed
//   SMP_FUZZ_WITH="gradient penalty"                  so many programs that have these features
//   SMP_FUZZ_SHOW=1                                   prints every program and its verdict
//   SMP_FUZZ_SHRINK=0, SMP_FUZZ_STOP=1                so many failures are made smaller; ends there
//   SMP_FUZZ_WITHOUT="in-place,toggle"                programs without these features; "" has all
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz/apart.h"
#include "fuzz/program.h"

namespace smp::fuzz {
namespace {

constexpr std::uint64_t kPrograms = 250;
constexpr std::uint64_t kFirstSeed = 1;
constexpr std::uint64_t kShrunk = 3;  // failures made smaller; others are printed as they are
constexpr double kShrinkSeconds = 20;

std::string environment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}
std::uint64_t number(const char* name, std::uint64_t otherwise) {
  return std::stoull(environment(name, std::to_string(otherwise)));
}

/// What is known to differ from one process without a word: a buffer of a model that is not routed
/// itself, and that only some microbatches write, is written in the order in which they come.
constexpr const char* kSwitchedOff = "update average";

std::set<std::string> names_in(const char* name, const char* otherwise) {
  std::set<std::string> names;
  std::istringstream list(environment(name, otherwise));
  for (std::string name; std::getline(list, name, ',');) names.insert(name);
  return names;
}

/// How often each verdict was given, in all and to programs with a feature.
class Tally {
 public:
  void note(const Program& program, const Result& result) {
    count("all programs", result.verdict);
    for (const auto& feature : features(program)) count(feature, result.verdict);
    if (result.verdict == Verdict::kEqual && result.replayed > 0) ++replaying_;
    if (result.verdict == Verdict::kEqual && result.ahead > 0) ++ahead_;
    if (result.verdict == Verdict::kRefused) ++refusals_[result.text];
    if (result.verdict == Verdict::kBothThrow) ++throws_[result.text.substr(0, 90)];
  }

  void print() const {
    std::cout << std::left << std::setw(26) << "feature" << std::right << std::setw(8) << "equal"
              << std::setw(12) << "both throw" << std::setw(9) << "refused" << std::setw(9)
              << "failed"
              << "\n";
    for (const auto& [feature, counts] : counts_) {
      std::cout << std::left << std::setw(26) << feature << std::right << std::setw(8) << counts[0]
                << std::setw(12) << counts[1] << std::setw(9) << counts[2] << std::setw(9)
                << counts[3] << "\n";
    }
    std::cout << std::setw(6) << replaying_ << " equal with steps that were replayed\n"
              << std::setw(6) << ahead_ << " equal with calls that were computed ahead\n";
    for (const auto& [reason, times] : refusals_) {
      std::cout << std::setw(6) << times << " refused: " << reason << "\n";
    }
    for (const auto& [text, times] : throws_) {
      std::cout << std::setw(6) << times << " threw in both: " << text << "\n";
    }
  }

  int of(Verdict verdict) const { return counts_.at("all programs")[column(verdict)]; }
  /// Programs that are equal, with steps that were replayed.
  int replaying() const { return replaying_; }
  /// Those with calls that ranks computed again while they would idle.
  int ahead() const { return ahead_; }
  int all() const {
    int sum = 0;
    for (const int count : counts_.at("all programs")) sum += count;
    return sum;
  }

 private:
  static std::size_t column(Verdict verdict) {
    return is_failure(verdict) ? 3 : static_cast<std::size_t>(verdict);
  }
  void count(const std::string& feature, Verdict verdict) {
    ++counts_[feature].at(column(verdict));
  }

  std::map<std::string, std::array<int, 4>> counts_;
  std::map<std::string, int> refusals_, throws_;
  int replaying_ = 0, ahead_ = 0;
};

/// The first seeds, from `first` on, of programs that have all features `with`.
std::vector<std::uint64_t> seeds_of(std::uint64_t first, std::uint64_t programs,
                                    const std::set<std::string>& with,
                                    const std::set<std::string>& without) {
  std::vector<std::uint64_t> seeds;
  for (auto seed = first; seeds.size() < programs; ++seed) {
    if (seed - first > 1000 * (programs + 1))
      throw std::invalid_argument("SMP_FUZZ_WITH: none has");
    const auto has = with.empty() ? with : features(generate(seed, without));
    if (std::includes(has.begin(), has.end(), with.begin(), with.end())) seeds.push_back(seed);
  }
  return seeds;
}

std::string command(std::uint64_t seed) {
  return "SMP_FUZZ_SEED=" + std::to_string(seed) +
         " SMP_FUZZ_PROGRAMS=1 test_fuzz --source fuzz_test";
}

void report(const Program& program, const Result& result, bool shrinks) {
  const Program small = shrinks ? shrink(program, result.verdict, kShrinkSeconds) : program;
  Result now = result;
  if (shrinks) {
    judge_apart(
        1, [&](int) { return judge(small); },
        [&](int, const Result& own) { return now = own, true; });
  }
  ADD_FAILURE() << name_of(now.verdict) << " (seed " << program.seed << "): " << now.text << "\n"
                << (shrinks ? pseudo_code(small) : "") << "again: " << command(program.seed);
}

TEST(Fuzz, RandomProgramsEqualOneProcessOrAreRefused) {
  const auto programs = number("SMP_FUZZ_PROGRAMS", kPrograms);
  const auto first = number("SMP_FUZZ_SEED", kFirstSeed);
  const bool shows = !environment("SMP_FUZZ_SHOW", "").empty();
  const auto without = names_in("SMP_FUZZ_WITHOUT", kSwitchedOff);
  const auto seeds = seeds_of(first, programs, names_in("SMP_FUZZ_WITH", ""), without);
  const bool replays = without.count("static mode") == 0;
  const auto program = [&](int i) { return generate(seeds[static_cast<std::size_t>(i)], without); };
  Tally tally;
  const auto shrinks = number("SMP_FUZZ_SHRINK", kShrunk);
  const auto most = number("SMP_FUZZ_STOP", programs);
  std::uint64_t failures = 0;
  const auto judged = [&](int i) { return judge(program(i)); };
  judge_apart(static_cast<int>(programs), judged, [&](int i, const Result& result) {
    const auto made = program(i);
    tally.note(made, result);
    if (shows) {
      std::cout << pseudo_code(made) << name_of(result.verdict) << " " << result.text << "\n\n";
    }
    if (is_failure(result.verdict)) report(made, result, failures++ < shrinks);
    return failures < most;
  });
  tally.print();
  if (programs < 100 || failures >= most) return;
  EXPECT_LE(tally.of(Verdict::kRefused) * 5, tally.all()) << "too much is refused";
  EXPECT_GE(tally.of(Verdict::kEqual) * 2, tally.all()) << "too little is compared";
  EXPECT_TRUE(!replays || tally.replaying() * 20 >= tally.all()) << "too little is replayed";
}

}  // namespace
}  // namespace smp::fuzz
