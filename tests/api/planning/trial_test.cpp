// The trial run: it happens in a copy of the process, leaves no trace, and ends whatever the body
// does.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>

#include "api/planning/trial_results.h"
#include "api/state/module_state_testing.h"
#include "base/log.h"

namespace smp {
namespace trial_test {

using namespace module_state_test;  // NOLINT(google-build-using-namespace)
using module_state_test::Program;   // there is another where tests are compiled together
using testing::AllOf;
using testing::HasSubstr;
using testing::Ne;
using testing::Not;

TEST(Trial, ChangesNothingOfTheUsers) {
  int bodies = 0;
  on_ranks(2, [&] {
    auto net = Program<Counts>().make();
    DistributedModel model(net);
    auto evaluate = smp::step([&](const Tensor& x) {
      ++bodies;
      return model(x);
    });
    model.eval();
    evaluate(batch(0));
    EXPECT_EQ(net->counter->calls, rank() == 0 ? 4 : 0);  // two microbatches, twice
  });
  EXPECT_EQ(bodies, 2);
}

/// What the log says if the body does this in its trial; the step itself goes well.
std::string log_of_trial(const std::function<void()>& harm, double abort_seconds = 600) {
  const base::LogCapture log;
  Config config = config_of("interleaved");
  config.abort_seconds = abort_seconds;
  run_local(
      2,
      [&] {
        DistributedModel model(Program<Masks>().make());
        auto evaluate = smp::step([&](const Tensor& x) {
          if (is_tracing()) harm();
          return model(x);
        });
        for (int i = 0; i < 2; ++i) evaluate(batch(i));
      },
      config);
  return log.text();
}

TEST(Trial, ThatCrashesIsSaidAndModulesAreCounted) {
  EXPECT_THAT(log_of_trial([] { std::raise(SIGSEGV); }),
              AllOf(HasSubstr("so modules are counted instead"), HasSubstr("ended by signal 11")));
}

TEST(Trial, ThatExitsIsSaid) {
  EXPECT_THAT(log_of_trial([] { std::exit(0); }),
              AllOf(HasSubstr("so modules are counted instead"), HasSubstr("its trial process")));
}

TEST(Trial, ThatHangsEnds) {
  EXPECT_THAT(log_of_trial([] { ::pause(); }, 2), HasSubstr("did not end within 1 s"));
}

TEST(Trial, ThatThrowsIsSaid) {
  EXPECT_THAT(log_of_trial([] { throw std::runtime_error("no trial, please"); }),
              AllOf(HasSubstr("the step's body threw: "), HasSubstr("no trial, please")));
}

TEST(TrialResults, AreTheSameIfEveryMicrobatchRepeatsItsOwn) {
  TrialResults results(2, /*values=*/true);
  for (int run = 0; run < 2; ++run) {
    results.note(0, {at::full({2}, 1.0)});
    results.note(1, {at::full({2}, 2.0), at::Tensor()});
  }
  EXPECT_FALSE(results.changed());
}

TEST(TrialResults, HaveChangedIfOneMicrobatchEndsWithOthers) {
  TrialResults results(2, /*values=*/true);
  results.note(0, {at::full({2}, 1.0)});
  results.note(1, {at::full({2}, 2.0)});
  results.note(1, {at::full({2}, 3.0)});
  EXPECT_TRUE(results.changed());
  results.note(1, {at::full({2}, 2.0)});  // the last run counts
  EXPECT_FALSE(results.changed());
}

TEST(TrialResults, RememberValuesThatAnotherRunOverwrites) {
  TrialResults results(1, /*values=*/true);
  const auto kept = at::full({2}, 1.0);
  results.note(0, {kept});
  kept.fill_(2.0);
  results.note(0, {kept});
  EXPECT_TRUE(results.changed());
}

TEST(TrialResults, WithoutValuesDifferByShapeAndType) {
  TrialResults results(1, /*values=*/false);
  results.note(0, {at::full({2}, 1.0)});
  results.note(0, {at::full({2}, 2.0)});
  EXPECT_FALSE(results.changed());
  results.note(0, {at::full({2}, 2.0, at::kDouble)});
  EXPECT_TRUE(results.changed());
}

TEST(TrialResults, AsBytesReadWhatIsDense) {
  const auto matrix = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_EQ(result_bytes({matrix.t()}, true), result_bytes({matrix.t().contiguous()}, true));
  EXPECT_THAT(result_bytes({matrix}, true), Ne(result_bytes({matrix + 1}, true)));
  EXPECT_EQ(result_bytes({matrix}, false), result_bytes({at::zeros({2, 3}, at::kMeta)}, false));
  EXPECT_EQ(result_bytes({matrix.to_sparse()}, true), result_bytes({at::Tensor()}, true));
}

}  // namespace trial_test
}  // namespace smp
