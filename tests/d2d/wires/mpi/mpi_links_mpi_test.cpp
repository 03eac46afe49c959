// What MPI loses without a word is noticed: this program keeps messages back before MPI sees them.
#include <gmock/gmock.h>
#include <mpi.h>

#include <optional>

#include "d2d/job/shared_mpi_session.h"
#include "d2d/wire/wire_contract.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace {

/// A message that its sender takes for sent.
struct KeptBack {
  Bytes bytes;
  int peer, tag;
  MPI_Comm ranks;
};

/// Bytes of a question, and of its answer.
constexpr std::size_t kNote = 72;
int size_to_keep_back = -1;
int questions_to_lose = 0;
int sends = 0;  // of this rank, questions and answers among them
std::optional<KeptBack> kept_back;

void let_go() {
  size_to_keep_back = -1;
  if (!kept_back) return;
  PMPI_Send(kept_back->bytes.data(), static_cast<int>(kept_back->bytes.size()), MPI_BYTE,
            kept_back->peer, kept_back->tag, kept_back->ranks);
  kept_back.reset();
}

}  // namespace
}  // namespace smp::d2d

/// In place of MPI's own, which is PMPI_Isend.
extern "C" int MPI_Isend(const void* buffer, int count, MPI_Datatype type, int peer, int tag,
                         MPI_Comm ranks, MPI_Request* request) {
  using namespace smp::d2d;
  ++sends;
  if (questions_to_lose > 0 && static_cast<std::size_t>(count) == kNote) {
    --questions_to_lose;
    return PMPI_Isend(nullptr, 0, type, MPI_PROC_NULL, tag, ranks, request);
  }
  if (count != size_to_keep_back || kept_back) {
    return PMPI_Isend(buffer, count, type, peer, tag, ranks, request);
  }
  const auto* const first = static_cast<const std::byte*>(buffer);
  kept_back = KeptBack{Bytes(first, first + count), peer, tag, ranks};
  return PMPI_Isend(nullptr, 0, type, MPI_PROC_NULL, tag, ranks, request);  // complete
}

namespace smp::d2d {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kLost = 7'777;
constexpr MpiWireOptions kOptions{.link_patience = base::kSecond};

/// Rank 0 sends to rank 1, and all ranks watch their links.
class MpiLinksTest : public testing::Test {
 protected:
  Wire& wire() { return end_->wire(); }
  bool is(int rank) const { return end_->rank() == rank; }

  /// Polls for so long. @return what was found first; it goes on, as a rank that catches it
  std::string run(double seconds, bool ask) {
    const base::SteadyClock clock;
    const auto start = clock.now();
    const auto end = start + static_cast<base::Nanoseconds>(seconds * base::kSecond);
    std::string found;
    for (int idle = 0; clock.now() < end; ++idle) {
      const auto now = refusal<PeerLostError>([&] {
        if (ask) wire().check_links();
        if (wire().poll()) idle = 0;
      });
      if (now != "accepted" && found.empty()) {
        found = now;
        seconds_until_found_ = static_cast<double>(clock.now() - start) / base::kSecond;
      }
      wait_politely(idle);
    }
    return found;
  }
  std::string watch(double seconds) { return run(seconds, true); }
  /// What was lost comes after all, so that the wires can be closed.
  void TearDown() override {
    let_go();
    run(0.5, false);
    EXPECT_TRUE(wire().close(60 * base::kSecond));
  }
  double seconds_until_found_ = 0;
  std::unique_ptr<WireEnd> end_ =
      std::make_unique<WireEnd>(shared_mpi_session().connect_all(kOptions));
};

TEST_F(MpiLinksTest, NothingIsLostWhereAllArrives) {
  end_->post(GlobalRank((end_->rank() + 1) % wire().members().size()), Bytes(kLost));
  EXPECT_EQ(watch(2), "");
}

// MPI would have to connect every rank with every other.
TEST_F(MpiLinksTest, RanksThatExchangeNothingAreNotAsked) {
  sends = 0;
  if (is(0)) end_->post(GlobalRank(1), Bytes(kLost));
  EXPECT_EQ(watch(1), "");
  if (is(0) || is(1)) {
    EXPECT_GT(sends, 1);
  } else {
    EXPECT_EQ(sends, 0);
  }
}

TEST_F(MpiLinksTest, ALostMessageIsFoundByBothEndsTheLowerRankFirst) {
  if (is(1)) {
    end_->post(GlobalRank(0), Bytes(kLost - 1));
    size_to_keep_back = kLost;
    end_->post(GlobalRank(0), Bytes(kLost));
  }
  const auto found = watch(8);
  if (is(0) || is(1)) {
    EXPECT_THAT(found, AllOf(HasSubstr("the connection from rank 1 to rank 0 has lost"),
                             HasSubstr("1 of 2 messages")));
  } else {
    EXPECT_EQ(found, "") << "the other links are whole";
  }
  const auto seconds = shared_mpi_session().all_gather(std::to_string(seconds_until_found_));
  EXPECT_LT(std::stod(seconds[0]), std::stod(seconds[1]));
}

// Both go down with one connection, and rank 1 waits for nothing.
TEST_F(MpiLinksTest, AQuestionMayBeLostWithTheMessage) {
  if (is(1)) {
    end_->post(GlobalRank(0), Bytes(kLost - 1));
    size_to_keep_back = kLost;
    end_->post(GlobalRank(0), Bytes(kLost));
  }
  if (is(0)) questions_to_lose = 1;
  const auto found = run(8, /*ask=*/is(0));
  if (!is(0)) return;
  EXPECT_EQ(questions_to_lose, 0);
  EXPECT_THAT(found, HasSubstr("the connection from rank 1 to rank 0 has lost"));
}

TEST_F(MpiLinksTest, LostDataIsFound) {
  const Bytes bytes(kLost);
  Bytes place(kLost), first(kLost - 1);
  if (is(0)) {
    wire().send(std::span(bytes).first(kLost - 1), GlobalRank(1), 1, 1);
    size_to_keep_back = kLost;
    wire().send(bytes, GlobalRank(1), 2, 2);
  }
  if (is(1)) {
    wire().receive(first, GlobalRank(0), 1, 1);
    wire().receive(place, GlobalRank(0), 2, 2);
  }
  const auto found = watch(4);
  if (is(0) || is(1)) {
    EXPECT_THAT(found, AllOf(HasSubstr("the connection from rank 0 to rank 1 has lost"),
                             HasSubstr("1 of 2 messages")));
  }
  let_go();  // while `place` is there
  run(0.5, false);
}

TEST_F(MpiLinksTest, WhatIsLateIsNotLost) {
  if (is(0)) {
    size_to_keep_back = kLost;
    end_->post(GlobalRank(1), Bytes(kLost));
  }
  EXPECT_EQ(watch(0.7), "");
  let_go();
  EXPECT_EQ(watch(2), "");
}

}  // namespace
}  // namespace smp::d2d
