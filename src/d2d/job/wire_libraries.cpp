// d2d/job/wire_libraries.cpp: see the header.
#include "d2d/job/wire_libraries.h"

#include "base/check.h"
#include "d2d/wires/ofi/ofi_endpoint.h"
#include "d2d/wires/ofi/ofi_library.h"
#include "d2d/wires/ucx/ucx_library.h"
#include "d2d/wires/ucx/ucx_worker.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

template <class Look>
base::NetworkLibrary found_by(const Look& look) {
  try {
    return look();
  } catch (const PeerLostError& error) {
    return {.version = {}, .uses = {}, .problem = error.what()};
  }
}

}  // namespace

base::NetworkLibrary look_at_ucx() {
  return found_by([] {
    const UcxWorker worker;
    return base::NetworkLibrary{.version = ucx().version_string(), .uses = {}, .problem = {}};
  });
}

base::NetworkLibrary look_at_ofi() {
  return found_by([] {
    const OfiEndpoint endpoint;
    const auto version = ofi().version();
    const auto& address = endpoint.address();  // its provider, a zero, and what is the provider's
    return base::NetworkLibrary{.version = base::concat(FI_MAJOR(version), '.', FI_MINOR(version)),
                                .uses = address.substr(0, address.find('\0')),
                                .problem = {}};
  });
}

}  // namespace smp::d2d
