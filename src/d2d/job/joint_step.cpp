// d2d/job/joint_step.cpp: see the header.
#include "d2d/job/joint_step.h"

#include <algorithm>

#include "base/check.h"

namespace smp::d2d {

JointStep::JointStep(const MpiSession& job, const std::function<void()>& step) {
  std::string text;
  try {
    step();
  } catch (const PeerLostError& error) {
    text = error.what();
  } catch (const std::exception& error) {
    text = error.what();
    own_ = std::current_exception();
  }
  const auto texts = job.all_gather(text);
  const auto first =
      std::find_if(texts.begin(), texts.end(), [](const auto& other) { return !other.empty(); });
  if (first == texts.end()) return;
  rank_ = static_cast<int>(first - texts.begin());
  text_ = *first;
}

std::string JointStep::problem() const {
  return rank_ < 0 ? std::string() : base::concat("rank ", rank_, ": ", text_);
}

void JointStep::require(const std::string& what, const std::string& remedy) const {
  if (own_) std::rethrow_exception(own_);
  SMP_REQUIRE_AS(PeerLostError, rank_ < 0, "rank ", rank_, ": ", what, text_, remedy);
}

}  // namespace smp::d2d
