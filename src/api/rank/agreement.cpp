// api/rank/agreement.cpp: see the header.
#include "api/rank/agreement.h"

#include "base/check.h"

namespace smp {

void require_equal(const d2d::Communicator& ranks, std::uint64_t value, const char* what,
                   const char* remedy) {
  d2d::Payload own;
  own.bytes.assign(reinterpret_cast<const char*>(&value), sizeof value);
  const auto all = ranks.all_gather(own, "the check that ranks agree");
  for (std::size_t i = 0; i < all.size(); ++i) {
    SMP_REQUIRE(all[i].bytes == all[0].bytes, "rank ", ranks.members()[static_cast<int>(i)],
                " and rank ", ranks.members()[0], " differ in ", what, "; ", remedy);
  }
}

}  // namespace smp
