// alive/gone_ranks.h: a rank whose process was killed cannot say so itself.
#pragma once

namespace smp::base {

/// Names on stderr the ranks of this machine that are gone without a word, with what they ran last;
/// each is named once, by the first rank that looks. A rank that ends in good order says so in its
/// pulse. Safe in a signal handler.
/// @return true if any rank is gone like that, whichever rank named it
bool name_gone_ranks() noexcept;
/// True if a rank of this machine is gone that has said why.
bool a_gone_rank_has_spoken() noexcept;

}  // namespace smp::base
