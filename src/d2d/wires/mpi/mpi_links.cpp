// d2d/wires/mpi/mpi_links.cpp: see the header.
#include "d2d/wires/mpi/mpi_links.h"

#include <utility>

#include "base/check.h"

namespace smp::d2d {
namespace {

constexpr int kTag = 1;
constexpr int kQuestions = 5;  // within the patience

}  // namespace

/// A question or an answer. It travels as plain bytes, since all ranks run the same program.
struct MpiLinks::Note {
  bool question;
  LinkCounts counts;
};

MpiLinks::MpiLinks(MPI_Comm ranks, const Members& members, base::Nanoseconds patience)
    : ranks_(MpiCommunicator::duplicate(ranks)),
      members_(members),
      own_(ranks_.rank()),
      interval_(patience / kQuestions) {
  for (int peer = 0; peer < ranks_.size(); ++peer) {
    const bool first = members[own_].value() < members[peer].value();
    links_.push_back({.watch = LinkWatch(interval_, first ? patience : 2 * patience)});
  }
}

MpiLinks::~MpiLinks() = default;

void MpiLinks::ask() {
  const auto now = clock_.now();
  for (int peer = 0; peer < members_.size(); ++peer) {
    auto& link = links_[static_cast<std::size_t>(peer)];
    // A question may be lost as well.
    const auto pause = link.owes ? kQuestions * interval_ : interval_;
    if (!link.counts.any() || now - link.asked < pause) continue;
    link.asked = now;
    link.owes = true;
    send(peer, true);
  }
}

void MpiLinks::send(int peer, bool question) {
  auto note = std::make_unique<Note>(Note{question, counts(peer)});
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(note.get(), sizeof(Note), MPI_BYTE, peer, kTag, ranks_.get(), &request),
            "asking what has arrived", members_[peer]);
  notes_.add(request, std::move(note));
}

void MpiLinks::poll() {
  for (;;) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kTag, ranks_.get(), &found, &message, &status),
              "looking for what others say of their links");
    if (!found) return;
    const int peer = status.MPI_SOURCE;
    Note note;
    check_mpi(MPI_Mrecv(&note, sizeof note, MPI_BYTE, &message, MPI_STATUS_IGNORE),
              "hearing what has arrived", members_[peer]);
    if (note.question) {
      send(peer, false);
    } else {
      links_[static_cast<std::size_t>(peer)].owes = false;
    }
    look(peer, note.counts);
  }
}

void MpiLinks::look(int peer, const LinkCounts& theirs) {
  auto& link = links_[static_cast<std::size_t>(peer)];
  const auto loss = link.watch.look(link.counts, theirs, clock_.now());
  if (!loss) return;
  const auto [from, to] = loss->sent_by_this_end ? std::pair(own_, peer) : std::pair(peer, own_);
  throw PeerLostError(base::concat(
      "the connection from rank ", members_[from], " to rank ", members_[to],
      " has lost what it carried: ", loss->messages, " of ", loss->of,
      " messages did not arrive within ", static_cast<int>(loss->seconds),
      " s, though both ranks work. Look at the network between them, and restart from a "
      "checkpoint."));
}

bool MpiLinks::drained() {
  notes_.test_all([](std::unique_ptr<Note>&&) {});
  return notes_.empty();
}

}  // namespace smp::d2d
