// api/rank/report_error.cpp: see the header.
#include "smp/report_error.h"

#include "alive/common_errors.h"
#include "alive/exit_watch.h"
#include "server/protocol/exception_text.h"
#include "smp/error.h"

namespace smp {

void report_error(const std::exception& error) noexcept try {
  base::note_failure();
  const bool of_lost_peer = dynamic_cast<const PeerLostError*>(&error) != nullptr;
  server::say_once(server::text_of(error), of_lost_peer);
} catch (...) {
  server::say_once("an error that could not be printed");
}

}  // namespace smp
