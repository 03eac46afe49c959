// d2d/wires/ofi/ofi_handle.cpp: see the header.
#include "d2d/wires/ofi/ofi_handle.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include "d2d/wires/ofi/ofi_library.h"

namespace smp::d2d {

// What closing says is not looked at: nobody could do anything about it.
void OfiClose::operator()(fi_info* info) const noexcept { ofi().freeinfo(info); }
void OfiClose::operator()(fid_fabric* fabric) const noexcept { ::fi_close(&fabric->fid); }
void OfiClose::operator()(fid_domain* domain) const noexcept { ::fi_close(&domain->fid); }
void OfiClose::operator()(fid_av* addresses) const noexcept { ::fi_close(&addresses->fid); }
void OfiClose::operator()(fid_cq* completions) const noexcept { ::fi_close(&completions->fid); }
void OfiClose::operator()(fid_ep* endpoint) const noexcept { ::fi_close(&endpoint->fid); }
void OfiClose::operator()(fid_mr* memory) const noexcept { ::fi_close(&memory->fid); }

}  // namespace smp::d2d
