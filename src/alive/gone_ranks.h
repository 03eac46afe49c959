// alive/gone_ranks.h: a rank whose process was killed cannot say so itself.
#pragma once

namespace smp::base {

/// Names on stderr the ranks of this machine that are gone without a word, with what they ran last;
/// each once, by the first rank that looks. Who ends in good order says so in its pulse.
/// @return whether any is gone like that, whoever named it. Safe in a handler of signals.
bool name_gone_ranks() noexcept;
/// Whether a rank of this machine is gone that has said why.
bool a_gone_rank_has_spoken() noexcept;

}  // namespace smp::base
