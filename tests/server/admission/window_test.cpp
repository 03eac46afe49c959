// server/admission/window_test.cpp: requests wait at the window of their rank, and only there.
#include <algorithm>

#include "schedule/list_generators.h"
#include "schedule/list_schedule.h"
#include "server/admission/admission_testing.h"
#include "server/engine/module_server_testing.h"

namespace smp::server {
namespace window_test {

using schedule::ScheduleLists;
using testing::ElementsAre;
using testing::IsEmpty;

// ---- the window alone --------------------------------------------------------------------------

// Rank 1: F0 F1 B0 F2 B1 F3 B2 ...
class WindowTest : public test::AdmissionTest {
 protected:
  WindowTest()
      : AdmissionTest(schedule::make_schedule("1f1b", {.pp_size = 3, .microbatches = 6}), 6, 1) {}
  /// @return whether it must wait
  bool request(int microbatch, int module = 7) {
    const auto before = starter_.forwards.size();
    add(admission_, microbatch, module);
    const bool waits = starter_.forwards.size() == before;
    if (!waits) starter_.forwards.clear();
    return waits;
  }
  static void add(Admission& admission, int microbatch, int module) {
    ForwardTask task{PpRank(0), {}, {}};
    task.request.microbatch = microbatch;
    task.request.module = ModuleId{module};
    admission.add(std::move(task));
  }
  /// Those that have entered since this was asked.
  std::vector<int> entering() {
    std::vector<int> found;
    for (const auto& task : std::exchange(starter_.forwards, {})) {
      found.push_back(task.request.microbatch);
    }
    return found;
  }
};

TEST_F(WindowTest, HoldsWhatMayNotEnterUntilALowerMicrobatchHasEnded) {
  EXPECT_FALSE(request(0));
  EXPECT_FALSE(request(1));
  EXPECT_TRUE(request(3));
  EXPECT_TRUE(request(2));
  EXPECT_THAT(entering(), IsEmpty());
  admission_.forward_done(0);
  EXPECT_THAT(entering(), ElementsAre(2)) << "nothing of 0 is kept";
  EXPECT_FALSE(request(2)) << "it has entered";
  admission_.ended_here(1);
  EXPECT_THAT(entering(), ElementsAre(3));
}

TEST_F(WindowTest, AMicrobatchHasEndedWhenItsForwardIsDoneAndNothingOfItIsKept) {
  admission_.keep(0);  // its forward
  admission_.keep(0);  // the record
  EXPECT_TRUE(request(2));
  admission_.drop(0);
  admission_.forward_done(0);
  EXPECT_THAT(entering(), IsEmpty());
  admission_.keep(0);  // its backward
  admission_.drop(0);
  EXPECT_THAT(entering(), IsEmpty());
  admission_.drop(0);
  EXPECT_THAT(entering(), ElementsAre(2));
}

TEST_F(WindowTest, AMicrobatchWhoseForwardGoesOnHasNotEnded) {
  admission_.keep(0);
  EXPECT_TRUE(request(2));
  admission_.drop(0);
  EXPECT_THAT(entering(), IsEmpty()) << "another call of it may come";
}

/// They go in as they came.
TEST_F(WindowTest, SeveralOfOneMicrobatchEnterAtOnce) {
  EXPECT_TRUE(request(2, 5));
  EXPECT_TRUE(request(3, 6));
  EXPECT_TRUE(request(2, 7));
  admission_.ended_here(0);
  ASSERT_THAT(starter_.forwards, testing::SizeIs(2));
  EXPECT_EQ(starter_.forwards[0].request.module, ModuleId{5});
  EXPECT_EQ(starter_.forwards[1].request.module, ModuleId{7});
  admission_.open_all();
  admission_.ended_here(1);
  EXPECT_THAT(starter_.forwards, testing::SizeIs(2)) << "the step has failed";
}

TEST_F(WindowTest, TellsWhatWaits) {
  EXPECT_TRUE(request(4, 11));
  EXPECT_TRUE(request(3, 12));
  EXPECT_THAT(waiting(), ElementsAre(4, 3));
  EXPECT_THAT(reasons(), ElementsAre(Reason::kWindow, Reason::kWindow));
  EXPECT_EQ(list_.begin()->module, ModuleId{11});
  EXPECT_EQ(std::next(list_.begin())->module, ModuleId{12});
}

TEST_F(WindowTest, OnTheFirstRankAMicrobatchEndsWithItsBody) {
  schedule::StepProgress first(*schedule_, 6, 0);
  Admission admission(first, times_, list_, starter_);
  admission.keep(0);
  admission.drop(0);
  admission.forward_done(0);
  EXPECT_FALSE(first.may_enter(3));
}

TEST_F(WindowTest, WithoutWindowsNothingWaits) {
  const auto simple = schedule::make_simple();
  schedule::StepProgress progress(*simple, 6, 1);
  Admission admission(progress, times_, list_, starter_);
  add(admission, 5, 7);
  EXPECT_THAT(entering(), ElementsAre(5));
}

// ---- in a server -------------------------------------------------------------------------------

class WindowInServer : public test::ModuleServerTest {
 protected:
  /// Trains under `lists` with other delays of messages for every seed. Returns the most records
  /// that each rank kept at the end of a forward.
  std::vector<std::size_t> train_with(const ScheduleLists& lists, std::uint64_t seed) {
    schedule_ = schedule::make_list_schedule("lists", lists);
    std::vector<std::size_t> most(lists.ranks.size(), 0);
    gradients_.clear();
    on_ranks(
        lists.pp_size(),
        [&](ModuleServer& server, test::Ring& model) {
          const Body body = [&](int microbatch, test::Ring& ring, StepEngine& engine) {
            const auto loss = ring(test::input_of(microbatch)).sum().item<float>();
            static_cast<void>(loss);
            auto again = ring(test::input_of(microbatch)).sum();
            for (std::size_t rank = 0; rank < most.size(); ++rank) {
              const auto& step = servers_->server(static_cast<int>(rank)).core().step;
              if (step) most[rank] = std::max(most[rank], step->records.size());
            }
            engine.backward({again}, {}, /*keep_graph=*/false);
          };
          step(server, model, body, lists.microbatches);
          collect_gradients(server, model, lists.pp_size());
          EXPECT_EQ(server.core().workers.busy(), 0u);
        },
        seed);
    return most;
  }
};

ScheduleLists lists_of(const std::string& ranks) {
  return ScheduleLists::from_text("smp-schedule 1\nmicrobatches 5\n" + ranks, "test");
}

const char* const kAllFirst = "F0 F1 F2 F3 F4 B0 B1 B2 B3 B4\n";
const char* const kOneByOne = "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4\n";

/// Modules call each other in a ring, not in a chain.
TEST_F(WindowInServer, GradientsAreThoseOfLibTorchWhateverTheLists) {
  const auto one_by_one = [&](const char* first, const char* second, const char* third) {
    return lists_of(std::string("rank 0: ") + first + "rank 1: " + second + "rank 2: " + third);
  };
  for (const auto& lists :
       {schedule::one_forward_one_backward_lists(3, 5), schedule::simple_lists(3, 5),
        schedule::zero_bubble_lists(3, 5), schedule::one_forward_one_backward_lists(2, 5),
        one_by_one(kAllFirst, kOneByOne, kOneByOne), one_by_one(kAllFirst, kAllFirst, kOneByOne),
        one_by_one(kOneByOne, kAllFirst, kAllFirst)}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      train_with(lists, seed);
      expect_gradients_of_libtorch(5);
    }
  }
}

TEST_F(WindowInServer, ARankKeepsNoMoreMicrobatchesThanItsList) {
  const auto windows = lists_of(std::string("rank 0: ") + kAllFirst + "rank 1: " + kOneByOne +
                                "rank 2: " + kAllFirst);
  std::size_t most_without = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto most = train_with(windows, seed);
    EXPECT_LE(most[1], 2u) << "a microbatch calls \"inner\" twice";
    EXPECT_GE(most[1], 1u);
    const auto without = train_with(schedule::simple_lists(3, 5), seed);
    most_without = std::max(most_without, without[1]);
  }
  EXPECT_GT(most_without, 4u) << "else this shows nothing";
}

/// Microbatch 0 fails while others wait at the window of rank 1.
TEST_F(WindowInServer, AFailureDropsWhatWaits) {
  const auto lists = lists_of(std::string("rank 0: ") + kAllFirst + "rank 1: " + kOneByOne);
  schedule_ = schedule::make_list_schedule("lists", lists);
  bool waited = false;
  on_ranks(2, [&](ModuleServer& server, test::Ring& model) {
    const Body failing = [&](int microbatch, test::Ring& ring, StepEngine& engine) {
      const auto loss = ring(test::input_of(microbatch)).sum();
      test::LocalServers::sleep(base::kSecond);
      if (microbatch == 0) {
        waited = servers_->server(1).core().waiting.size() > 0;
        throw std::invalid_argument("too bad");
      }
      engine.backward({loss}, {}, /*keep_graph=*/false);
    };
    EXPECT_ANY_THROW(step(server, model, failing, 5));
    model->zero_grad();
    step(server, model, train, 5);
    collect_gradients(server, model, 2);
    EXPECT_EQ(server.core().workers.busy(), 0u);
  });
  EXPECT_TRUE(waited);
  expect_gradients_of_libtorch(5);
}

}  // namespace window_test
}  // namespace smp::server
