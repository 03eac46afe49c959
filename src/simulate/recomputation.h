// simulate/recomputation.h: what a microbatch keeps and computes if some calls are computed again.
// Chen et al. 2016, arXiv 1604.06174; paper App. H.2.
#pragma once

#include <vector>

#include "simulate/trace.h"

namespace smp::simulate {

/// Returns the microbatch `traced` as it goes if calls of some modules are computed again: each
/// such call keeps its inputs, and what other stages gave to it, instead of what its operators
/// keep; its backward takes the time of its forward as well, and holds what that keeps until the
/// backward has used it up. A call inside of such a call is a part of it, unless it is on another
/// stage: there it is one of its own, if it is of such a module.
///
/// A tensor that several calls keep as an input or as what another stage gave, or an operator as
/// well, counts once in each request (Trace::uses). In a trace without uses SharedTensor tells of
/// inputs: that of the first call which is computed again counts apart there, since it may be what
/// that call made.
///
/// A call that keeps products holds their results from its forward on too, and does not compute
/// them again.
/// @param all     tells the modules (Trace::recomputed)
/// @param stages  the stage of every module
[[nodiscard]] Trace with_recomputation(const Trace& traced, const Trace& all,
                                       const std::vector<int>& stages);

}  // namespace smp::simulate
