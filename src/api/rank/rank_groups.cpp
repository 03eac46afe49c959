// api/rank/rank_groups.cpp: see the header.
#include "api/rank/rank_groups.h"

#include <utility>

namespace smp {
namespace {

/// As the documents call it.
const char* name_of(Group which) {
  switch (which) {
    case Group::kWorld:
      return "WORLD";
    case Group::kMp:
      return "MP_GROUP";
    case Group::kPp:
      return "PP_GROUP";
    case Group::kTp:
      return "TP_GROUP";
    case Group::kDp:
      return "DP_GROUP";
    case Group::kRdp:
      return "RDP_GROUP";
    case Group::kLocal:
      return "LOCAL_GROUP";
  }
  return "ranks";
}

}  // namespace

d2d::Communicator RankGroups::of(Group which) const {
  return communicators_.group(d2d::Members(parts_.ranks_there(which), name_of(which)));
}

d2d::Communicator RankGroups::among(std::vector<GlobalRank> members) const {
  return communicators_.group(d2d::Members(std::move(members)));
}

int RankGroups::num_replicas() const noexcept {
  const bool alone = parts_.independent_pipelines || parts_.plan_request;
  return alone ? 1 : topology().dp_size();
}

}  // namespace smp
