// d2d/wires/mpi/mpi_links.h: the ranks of an MPI wire tell each other what has arrived. Threads:
// the thread that started MPI; nothing here blocks.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "base/clock.h"
#include "d2d/watch/link_watch.h"
#include "d2d/wire/members.h"
#include "d2d/wires/mpi/mpi_communicator.h"
#include "d2d/wires/mpi/transfer_set.h"

namespace smp::d2d {

/// Counts what goes over each link, and compares with the other end. Questions and answers travel
/// on a communicator of their own: MPI keeps the order of messages within one, so behind a lost
/// message nothing of its communicator arrives any more, while these still do once MPI has
/// connected again.
class MpiLinks {
 public:
  /// All ranks of `ranks` call this together; `members` names them in that order.
  /// @param patience  how long nothing must arrive on a link before what is missing there is lost
  MpiLinks(MPI_Comm ranks, const Members& members, base::Nanoseconds patience);
  ~MpiLinks();

  /// Returns the counts of the link to the peer at a position.
  LinkCounts& counts(int peer) { return links_[static_cast<std::size_t>(peer)].counts; }

  /// Asks peers with which anything was exchanged what has arrived there, except those that owe an
  /// answer or gave one just now. (With others MPI would have to connect first.) To be called again
  /// and again while nothing moves.
  void ask();
  /// Answers questions and looks at answers. To be called when nothing has arrived that was not
  /// taken.
  /// @throws PeerLostError  something is lost on the way to or from a peer. If both ends ask, the
  ///                        lower rank finds it first, so that one of them tells it.
  void poll();
  /// Returns true if all questions and answers have left.
  bool drained();

 private:
  struct Link {
    LinkWatch watch;
    LinkCounts counts = {};
    base::Nanoseconds asked = 0;  // 0: never
    bool owes = false;            // an answer
  };
  struct Note;

  void send(int peer, bool question);
  void look(int peer, const LinkCounts& theirs);

  MpiCommunicator ranks_;
  const Members members_;
  int own_;  // position
  base::Nanoseconds interval_;
  std::vector<Link> links_;  // by position
  base::SteadyClock clock_;
  TransferSet<std::unique_ptr<Note>> notes_;  // on their way
};

}  // namespace smp::d2d
