// d2d/wires/ofi/ofi_loss.cpp: see the header.
#include "d2d/wires/ofi/ofi_loss.h"

#include "base/check.h"
#include "d2d/wires/ofi/ofi_peer.h"
#include "d2d/wires/ofi/ofi_tasks.h"
#include "smp/error.h"

namespace smp::d2d {

void OfiLoss::note(const std::string& what, const char* why) {
  if (text_.empty()) text_ = what + why;
}

void OfiLoss::note_failed(const OfiTask* task, const std::string& why) {
  if (task == nullptr || task->peer == nullptr) {
    return note(base::concat("receiving over libfabric failed (", why, ')'), kGone);
  }
  if (task->peer->has_left) return;
  note(base::concat("sending ", task->bytes, " bytes to rank ", task->peer->rank,
                    " over libfabric failed (", why, ')'),
       kGone);
}

void OfiLoss::require_none(GlobalRank rank) const {
  SMP_REQUIRE_AS(PeerLostError, text_.empty(), "rank ", rank, ": ", text_);
}

}  // namespace smp::d2d
