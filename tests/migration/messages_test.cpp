// Messages of the program between ranks: which one is received where, values of every kind, order,
// and what becomes of those that do not come.
#include "smp/program/messages.h"

#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "migration/message_nets.h"

namespace smp {
namespace messages_test {

using testing::AllOf;
using testing::HasSubstr;
using namespace message_nets;

struct Note {
  std::string text;
  std::vector<int> numbers;
  std::optional<at::Tensor> tensor;
};

TEST(Messages, BringEveryKindOfValue) {
  run_local(2, [] {
    if (rank() == 0) {
      send(7, 1);
      send(std::string("a text"), 1);
      send(std::map<std::string, double>{{"lr", 0.5}}, 1);
      send(Note{"mask", {1, 2}, large(3)}, 1);
      send(at::Tensor(), 1);
      send(std::vector<at::Tensor>{torch::ones({2}), large(4)}, 1);
    } else {
      EXPECT_EQ(recv_from<int>(0), 7);
      EXPECT_EQ(recv_from<std::string>(0), "a text");
      EXPECT_EQ((recv_from<std::map<std::string, double>>(0).at("lr")), 0.5);
      const auto note = recv_from<Note>(0);
      EXPECT_EQ(note.text, "mask");
      EXPECT_EQ(note.numbers, (std::vector<int>{1, 2}));
      EXPECT_TRUE(torch::equal(*note.tensor, large(3)));
      EXPECT_FALSE(recv_from<at::Tensor>(0).defined());
      EXPECT_TRUE(torch::equal(recv_from<std::vector<at::Tensor>>(0).at(1), large(4)));
    }
  });
}

/// A large tensor is overtaken by what is sent after it.
TEST(Messages, OfOneTagComeInOrderWhateverTheirSize) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    run_local(3,
              [] {
                if (rank() != 2) {
                  for (int i = 0; i < 10; ++i) {
                    send(i % 2 == 0 ? large(i) : torch::full({1}, i, torch::kDouble), 2);
                  }
                  return;
                }
                for (const int from : {1, 0}) {
                  for (int i = 0; i < 10; ++i)
                    EXPECT_EQ(recv_from<at::Tensor>(from)[0].item<int>(), i);
                }
              },
              {}, {.seed = seed});
  }
}

TEST(Messages, OfSeveralTagsAreTakenInAnyOrder) {
  run_local(2, [] {
    if (rank() == 0) {
      for (const int tag : {3, 1, 2}) send(tag, {1, Group::kWorld, tag});
    } else {
      for (const int tag : {1, 2, 3}) EXPECT_EQ(recv_from<int>({0, Group::kWorld, tag}), tag);
    }
  });
}

TEST(Messages, AreCopiesWithoutHistoryAndDoNotWait) {
  run_local(2, [] {
    const int other = 1 - rank();
    auto weight = torch::ones({3000}).requires_grad_();
    send(weight * 2, other);
    auto written = large(1);
    send(written, other);  // both send before either receives
    written.fill_(9);
    EXPECT_FALSE(recv_from<at::Tensor>(other).requires_grad());
    EXPECT_TRUE(torch::equal(recv_from<at::Tensor>(other), large(1)));
  });
}

/// The ranks of every group of every rank exchange their global numbers.
TEST(Messages, CountRanksInAnyGroup) {
  for (const char* placement : {"DPT", "DTP", "PDT", "PTD", "TDP", "TPD"}) {
    run_local(
        8,
        [] {
          for (const Group which : {Group::kWorld, Group::kMp, Group::kPp, Group::kTp, Group::kDp,
                                    Group::kRdp, Group::kLocal}) {
            const auto ranks = group(which);
            const auto others = [&](const auto& act) {
              for (std::size_t i = 0; i < ranks.size(); ++i) {
                if (ranks[i] != rank()) act(Peer(static_cast<int>(i), which), ranks[i]);
              }
            };
            others([](const Peer& peer, int) { send(rank(), peer); });
            others(
                [](const Peer& peer, int expected) { EXPECT_EQ(recv_from<int>(peer), expected); });
          }
        },
        layout(2, 2, placement));
  }
}

TEST(Messages, OfAnotherTypeNameBothTypes) {
  run_local(2, [] {
    if (rank() == 0) {
      send(1.5, 1);
      send(2, 1);
    } else {
      EXPECT_THAT(refusal<UsageError>([] { recv_from<std::string>(0); }),
                  AllOf(HasSubstr("rank 1: smp::recv_from<"), HasSubstr("from rank 0"),
                        HasSubstr("it sent a double")));
      EXPECT_EQ(recv_from<int>(0), 2) << "the next one is not harmed";
    }
  });
}

/// Bytes do not tell a float from an int: each rank would read the other's bits as its own type.
TEST(GroupCalls, OfAnotherTypeNameBothTypes) {
  run_local(2, [] {
    const auto gather = [] { rank() == 0 ? void(all_gather(1.5F)) : void(all_gather(7)); };
    EXPECT_THAT(refusal<UsageError>(gather),
                rank() == 0 ? HasSubstr("rank 0: smp::all_gather<float>: rank 1 gave a int")
                            : HasSubstr("rank 1: smp::all_gather<int>: rank 0 gave a float"));
    if (rank() == 0) {
      EXPECT_EQ(broadcast(1.5F), 1.5F);
    } else {
      EXPECT_THAT(refusal<UsageError>([] { broadcast(7); }),
                  HasSubstr("rank 1: smp::broadcast<int>: rank 0 gave a float"));
    }
    EXPECT_EQ(broadcast(rank() + 3), 3) << "the next one is not harmed";
    const auto all = all_gather(torch::full({2}, rank()));
    EXPECT_TRUE(torch::equal(torch::stack(all), torch::arange(2).unsqueeze(1).expand({2, 2})));
  });
}

TEST(Messages, ToNobodyAreRefused) {
  run_local(2, [] {
    EXPECT_THAT(refusal<UsageError>([] { send(1, 2); }), HasSubstr("which has 2 ranks"));
    EXPECT_THAT(refusal<UsageError>([] { send(1, {-1, Group::kPp}); }), HasSubstr("no rank -1"));
    EXPECT_THAT(refusal<UsageError>([] { send(1, rank()); }), HasSubstr("this rank itself"));
    EXPECT_THAT(refusal<UsageError>([] { recv_from<int>(rank()); }), HasSubstr("this rank itself"));
  });
}

TEST(Messages, OfARankThatWaitsItselfAreRefusedAtOnce) {
  run_local(2, [] {
    if (rank() == 0) {
      EXPECT_THAT(refusal<UsageError>([] { recv_from<int>(1); }),
                  AllOf(HasSubstr("rank 0: smp::recv_from"), HasSubstr("waits for rank 1"),
                        HasSubstr("rank 1 calls smp::barrier, which waits for this rank")));
    }
    barrier();
  });
}

TEST(Messages, OfARankThatHasLeftAreNotAwaited) {
  run_local(2, [] {
    if (rank() == 1) return send(1, 0);
    EXPECT_EQ(recv_from<int>(1), 1);
    EXPECT_THAT(refusal<PeerLostError>([] { recv_from<int>(1); }),
                AllOf(HasSubstr("recv_from<int> from rank 1"), HasSubstr("rank 1 left")));
  });
}

TEST(Messages, ThatNobodySendsAreNamedInTheTableOfADeadlock) {
  try {
    run_local(2, [] { recv_from<int>({1 - rank(), Group::kWorld, 5}); });
    FAIL() << "two ranks waited for each other";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("recv_from<int> from rank 1 (tag 5)"),
                                    HasSubstr("recv_from<int> from rank 0 (tag 5)")));
  }
}

/// Takes a factor from the body that called it, and tells it a sum.
struct AskingImpl : torch::nn::Module {
  AskingImpl() : weight(register_parameter("weight", torch::ones({1}, torch::kDouble))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto factor = recv_from<double>({0, Group::kPp});
    send(x.sum().item<double>(), {0, Group::kPp});
    return x * weight * factor;
  }
  at::Tensor weight;
};
SMP_MODULE(Asking);

struct PairImpl : torch::nn::Module {
  PairImpl() : near(register_module("near", Shift())), far(register_module("far", Asking())) {}
  Shift near;
  Asking far;
};
SMP_MODULE(Pair);

/// Each microbatch gets its own answer.
TEST(Messages, GoBetweenABodyAndAModuleOfTheSameMicrobatch) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    run_local(2,
              [] {
                Pair net;
                DistributedModel model(net);
                model.set_partition("far", 1);
                auto train = step([&](const at::Tensor& x) {
                  send(10.0 * (current_microbatch() + 1), {1, Group::kPp});
                  const auto y = net->far(net->near(x)).sum();
                  EXPECT_EQ(recv_from<double>({1, Group::kPp}), current_microbatch() + 1);
                  model.backward(y);
                  return y;
                });
                for (int round = 0; round < 3; ++round) {
                  const auto out = train(torch::arange(1., 4., torch::kDouble));
                  for (int i = 0; i < 3; ++i) {
                    EXPECT_EQ(out.outputs()[static_cast<std::size_t>(i)].item<double>(),
                              10 * (i + 1) * (i + 1));
                  }
                }
              },
              layout(2), {.seed = seed});
  }
}

/// What a body hears of the other replica has the same bits whatever the order of microbatches.
TEST(Messages, OfBodiesOfReplicasPairByMicrobatch) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    run_local(4,
              [] {
                Twin net;
                DistributedModel model(net);
                auto train = step([&](const at::Tensor& x) {
                  const auto y = model(x).sum();
                  const Peer other(1 - dp_rank(), Group::kDp);
                  send(y.item<double>(), other);
                  const auto theirs = recv_from<double>(other);
                  const auto all = all_gather(y.item<double>(), Group::kDp);
                  EXPECT_EQ(all[static_cast<std::size_t>(1 - dp_rank())], theirs);
                  EXPECT_EQ(broadcast(dp_rank() + 5, group(Group::kDp)[1], Group::kDp), 6);
                  barrier(Group::kDp);
                  model.backward(y);
                  return theirs;
                });
                for (int round = 0; round < 2; ++round) {
                  const auto x = torch::arange(1., 4., torch::kDouble) + 10 * dp_rank();
                  const double theirs = 10 * (1 - dp_rank());
                  EXPECT_EQ(train(x).outputs(),
                            (std::vector<double>{theirs + 1, theirs + 2, theirs + 3}));
                }
              },
              layout(2), {.seed = seed});
  }
}

/// Replicas evaluate as often as each likes; what they train together pairs all the same.
TEST(Messages, OfReplicasThatEvaluatedUnevenlyPair) {
  run_local(
      4,
      [] {
        Twin net;
        DistributedModel model(net);
        auto train = step([&](const at::Tensor& x) {
          const auto y = model(x).sum();
          const Peer other(1 - dp_rank(), Group::kDp);
          send(y.item<double>(), other);
          barrier(Group::kDp);
          const auto all = all_gather(y.item<double>(), Group::kDp);
          model.backward(y);
          EXPECT_EQ(all[static_cast<std::size_t>(1 - dp_rank())], recv_from<double>(other));
        });
        auto evaluate = step([&](const at::Tensor& x) {
          const auto y = model(x).sum();
          send(y.item<double>(), {1, Group::kPp});  // within the replica
          return y;
        });
        const auto x = torch::arange(1., 4., torch::kDouble) + 10 * dp_rank();
        for (int round = 0; round < 3; ++round) {
          for (int i = 0; i < 1 + 2 * round * dp_rank(); ++i) {
            const torch::NoGradGuard no_grad;
            evaluate(x);
          }
          train(x);
        }
      },
      layout(2));
}

/// What was not received of a failed step is not taken for a message of the next one.
TEST(Messages, OfAStepThatFailedAreDropped) {
  run_local(
      2,
      [] {
        Shift net;
        DistributedModel model(net);
        bool fails = true;
        auto train = step([&](const at::Tensor& x) {
          if (dp_rank() == 0) send(fails ? 1 : 2, {1, Group::kDp});
          if (fails) throw std::runtime_error("meant to fail");
          if (dp_rank() == 1) {
            EXPECT_EQ(recv_from<int>({0, Group::kDp}), 2);
          }
          model.backward(model(x).sum());
        });
        EXPECT_ANY_THROW(train(torch::ones({3}, torch::kDouble)));
        fails = false;
        train(torch::ones({3}, torch::kDouble));
      },
      layout(1));
}

TEST(Messages, ThatAFailedStepAwaitsEndWithIt) {
  run_local(
      2,
      [] {
        Twin net;
        DistributedModel model(net);
        model.set_partition("far", 1);
        bool ended = false, first = true;
        auto train = step([&](const at::Tensor& x) {
          if (first) return net->far(x);  // microbatches of the first step run one after the other
          if (current_microbatch() == 1) throw std::runtime_error("meant to fail");
          try {
            recv_from<int>({1, Group::kPp, 77});  // nobody sends it
          } catch (const PeerLostError& error) {
            ended = true;
            EXPECT_THAT(error.what(), HasSubstr("meant to fail"));
            throw;
          }
          return net->far(x);
        });
        train(torch::ones({3}, torch::kDouble));
        first = false;
        EXPECT_ANY_THROW(train(torch::ones({3}, torch::kDouble)));
        EXPECT_TRUE(ended || rank() == 1);
        barrier();  // the session goes on
      },
      layout(2));
}

/// Waits of a body for another replica, of which the step fails.
TEST(Messages, OfAReplicaWhoseStepFailedAreNotAwaited) {
  const std::vector<std::function<void()>> waits = {
      [] {
        recv_from<int>({1, Group::kDp});
      },
      [] { barrier(Group::kRdp); }, [] { all_gather(1, Group::kDp); },
      [] { broadcast(1, group(Group::kDp)[1], Group::kDp); }};
  for (const int stages : {1, 2}) {
    run_local(
        2 * stages,
        [&] {
          Twin net;
          DistributedModel model(net);
          std::size_t kind = 0;
          auto train = step([&](const at::Tensor& x) {
            if (kind < waits.size() && dp_rank() == 1) throw std::runtime_error("meant to fail");
            if (kind < waits.size()) waits[kind]();
            model.backward(model(x).sum());
          });
          for (; kind < waits.size(); ++kind) {
            const auto text =
                refusal<std::exception>([&] { train(torch::ones({3}, torch::kDouble)); });
            EXPECT_THAT(text, HasSubstr("meant to fail"));
          }
          train(torch::ones({3}, torch::kDouble));  // the session goes on
        },
        layout(stages));
  }
}

TEST(Messages, InATrialRunAreNotSentAndNotAwaited) {
  auto config = layout(2);
  config.skip_tracing = false;
  run_local(
      4,
      [] {
        Twin net;
        DistributedModel model(net);
        auto train = step([&](const at::Tensor& x) {
          const Peer other(1 - dp_rank(), Group::kDp);
          send(1, other);
          EXPECT_EQ(all_gather(3, Group::kDp).size(), 2U);
          barrier(Group::kDp);
          if (is_tracing()) {
            EXPECT_THAT(refusal<UsageError>([&] { recv_from<int>(other); }),
                        HasSubstr("this rank runs alone"));
          } else {
            EXPECT_EQ(recv_from<int>(other), 1);
          }
          model.backward(model(x).sum());
        });
        train(torch::ones({3}, torch::kDouble));
      },
      config);
}

}  // namespace messages_test
}  // namespace smp
