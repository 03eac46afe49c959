// Messages of the program with a deadline: what comes in time, what comes later, what never comes.
#include <gmock/gmock.h>

#include <string>

#include "api/two_ranks.h"
#include "migration/message_nets.h"
#include "smp/program/messages.h"

namespace smp {
namespace messages_in_time_test {

using testing::AllOf;
using testing::HasSubstr;
using namespace message_nets;

/// In simulated time, so that nothing depends on the machine.
TEST(MessagesInTime, AreNothingAtTheirDeadlineAndComeLater) {
  run_local(2, [] {
    if (rank() == 0) {
      EXPECT_FALSE(try_recv_from<int>(1, 0)) << "nobody has sent anything";
      EXPECT_FALSE(try_recv_from<int>(1, 0.5));
      barrier();
      EXPECT_EQ(try_recv_from<int>(1, 10), 1);
      EXPECT_EQ(recv_from<int>(1), 2) << "in the order of sending";
      EXPECT_EQ(try_recv_from<std::string>({1, Group::kWorld, 4}, 10), "tagged");
      EXPECT_FALSE(try_recv_from<int>(1, 0));
      EXPECT_THAT(refusal<UsageError>([] { static_cast<void>(try_recv_from<int>(1, -1)); }),
                  AllOf(HasSubstr("recv_from<int> from rank 1"), HasSubstr("within -1 seconds")));
    } else {
      barrier();
      send(1, 0);
      send(2, 0);
      send(std::string("tagged"), {0, Group::kWorld, 4});
      barrier();
    }
    if (rank() == 0) barrier();
  });
}

TEST(MessagesInTime, OfAnotherTypeOrARankThatHasLeftAreErrors) {
  run_local(2, [] {
    if (rank() == 1) return send(1.5, 0);
    EXPECT_THAT(refusal<UsageError>([] { static_cast<void>(try_recv_from<int>(1, 10)); }),
                HasSubstr("it sent a double"));
    EXPECT_THAT(refusal<PeerLostError>([] { static_cast<void>(try_recv_from<int>(1, 1e9)); }),
                AllOf(HasSubstr("recv_from<int> from rank 1"), HasSubstr("rank 1 left")))
        << "at once, and not at the deadline";
  });
}

TEST(MessagesInTime, AreSentUntilTheyAreTaken) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    run_local(2,
              [] {
                if (rank() == 0) {
                  EXPECT_FALSE(send_and_wait(1, 1, 0));
                  EXPECT_FALSE(send_and_wait(large(2), 1, 0.01)) << "nobody receives";
                  barrier();
                  EXPECT_TRUE(send_and_wait(3, 1, 100));
                  EXPECT_FALSE(send_and_wait(4, 1, 0.01)) << "a receipt of earlier ones is none";
                  barrier();
                } else {
                  barrier();
                  EXPECT_EQ(recv_from<int>(0), 1) << "what was not taken in time stays sent";
                  EXPECT_TRUE(torch::equal(recv_from<at::Tensor>(0), large(2)));
                  EXPECT_EQ(recv_from<int>(0), 3);
                  barrier();
                  EXPECT_EQ(try_recv_from<int>(0, 10), 4);
                }
              },
              {}, {.seed = seed});
  }
}

TEST(MessagesInTime, ToARankThatHasLeftAreErrors) {
  run_local(2, [] {
    if (rank() == 1) return;
    EXPECT_THAT(refusal<PeerLostError>([] { static_cast<void>(send_and_wait(1, 1, 1e9)); }),
                AllOf(HasSubstr("smp::send_and_wait to rank 1"), HasSubstr("rank 1 left")));
  });
}

/// Bodies of replicas wait for each other by turns, several microbatches at a time.
TEST(MessagesInTime, AreTakenInBodies) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    run_local(4,
              [] {
                Twin net;
                DistributedModel model(net);
                auto train = step([&](const at::Tensor& x) {
                  const auto y = model(x).sum();
                  const Peer other(1 - dp_rank(), Group::kDp);
                  if (dp_rank() == 0) {
                    EXPECT_TRUE(send_and_wait(current_microbatch(), other, 1000));
                  } else {
                    EXPECT_EQ(try_recv_from<int>(other, 1000), current_microbatch());
                    EXPECT_FALSE(try_recv_from<int>(other, 0.001));
                  }
                  model.backward(y);
                });
                for (int round = 0; round < 2; ++round)
                  train(torch::arange(1., 4., torch::kDouble));
              },
              layout(2), {.seed = seed});
  }
}

/// In a trial run nobody is there: nothing is sent, nothing comes, and nobody waits.
TEST(MessagesInTime, InATrialRunAreNeitherSentNorAwaited) {
  auto config = layout(2);
  config.skip_tracing = false;
  run_local(
      4,
      [] {
        Twin net;
        DistributedModel model(net);
        auto train = step([&](const at::Tensor& x) {
          const Peer other(1 - dp_rank(), Group::kDp);
          if (is_tracing()) {
            EXPECT_TRUE(send_and_wait(1, other, 1e9));
            EXPECT_FALSE(try_recv_from<int>(other, 1e9));
          }
          model.backward(model(x).sum());
        });
        train(torch::ones({3}, torch::kDouble));
      },
      config);
}

}  // namespace messages_in_time_test
}  // namespace smp
