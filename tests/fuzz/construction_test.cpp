// Random constructors: under smp::delay_param_initialization they build, on 1 to 4 ranks, what they
// build without it, or are refused.
//
//   SMP_FUZZ_CONSTRUCTIONS=100000 SMP_FUZZ_SEED=1000 ...   so many, the first with this seed
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "fuzz/apart.h"
#include "fuzz/construction.h"

namespace smp::fuzz {
namespace construction_test {

constexpr double kShrinkSeconds = 20;
constexpr int kShrunk = 3;  // failures made smaller

int number(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::stoi(value);
}

void report(const Construction& made, const Result& result, bool shrinks) {
  const auto small = shrinks ? shrink_construction(made, result.verdict, kShrinkSeconds) : made;
  Result now = result;
  if (shrinks) {
    judge_apart(
        1, [&](int) { return judge_construction(small); },
        [&](int, const Result& own) { return now = own, true; });
  }
  ADD_FAILURE() << name_of(now.verdict) << ": " << now.text << "\n"
                << pseudo_code(small) << "again: SMP_FUZZ_SEED=" << made.seed
                << " SMP_FUZZ_CONSTRUCTIONS=1 test_fuzz --source construction_test";
}

TEST(Constructions, AreEqualOrRefused) {
  const int count = number("SMP_FUZZ_CONSTRUCTIONS", 400), first = number("SMP_FUZZ_SEED", 1);
  const auto made = [&](int i) { return draw_construction(static_cast<std::uint64_t>(first + i)); };
  std::map<Verdict, int> verdicts;
  std::map<std::string, int> refusals;
  int failures = 0;
  judge_apart(
      count, [&](int i) { return judge_construction(made(i)); },
      [&](int i, const Result& result) {
        ++verdicts[result.verdict];
        if (result.verdict == Verdict::kRefused) ++refusals[result.text.substr(0, 120)];
        if (is_failure(result.verdict)) report(made(i), result, failures++ < kShrunk);
        return true;
      });
  for (const auto& [verdict, times] : verdicts) {
    std::cout << times << " " << name_of(verdict) << "\n";
  }
  for (const auto& [text, times] : refusals) std::cout << times << " refused: " << text << "\n";
  if (count < 100) return;
  EXPECT_LE(verdicts[Verdict::kRefused] * 8, count) << "too much is refused";
}

}  // namespace construction_test
}  // namespace smp::fuzz
