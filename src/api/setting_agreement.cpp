// api/setting_agreement.cpp: hashes, then a line of text for each setting.
#include "api/setting_agreement.h"

#include <algorithm>
#include <string>
#include <vector>

#include "api/exchange.h"
#include "base/check.h"
#include "base/config.h"

namespace smp {
namespace {

using Lines = std::vector<std::string>;

// "microbatches = 2 (flag --smp.microbatches)", in the same order on every rank.
Lines lines_of(const base::ResolvedConfig& config) {
  Lines lines;
  for (const auto& row : config.shared_rows()) {
    lines.push_back(base::concat(row.key, " = ", row.value));
    lines.push_back(row.origin);
  }
  return lines;
}

std::string said_by(const d2d::Communicator& ranks, std::size_t member, const Lines& lines,
                    std::size_t at) {
  return base::concat("rank ", ranks.members()[member], " has ", lines[at], " (", lines[at + 1],
                      ")");
}

// "rank 0 has ..., rank 1 has ...", of each setting in which some rank differs from the first.
Lines differences(const d2d::Communicator& ranks, const std::vector<Lines>& all) {
  Lines found;
  for (std::size_t at = 0; at < all[0].size(); at += 2) {
    const auto other = std::find_if(all.begin(), all.end(),
                                    [&](const Lines& lines) { return lines[at] != all[0][at]; });
    if (other == all.end()) continue;
    found.push_back(said_by(ranks, 0, all[0], at) + ", " +
                    said_by(ranks, static_cast<std::size_t>(other - all.begin()), *other, at));
  }
  return found;
}

}  // namespace

void require_same_settings(const d2d::Communicator& ranks, const base::ResolvedConfig& config) {
  const auto hashes = gather_values(ranks, config.hash(), "the hash of the settings");
  if (std::equal(hashes.begin() + 1, hashes.end(), hashes.begin())) return;
  const auto all = gather_values(ranks, lines_of(config), "the settings");
  std::string text = "the settings of the ranks differ:";
  for (const auto& difference : differences(ranks, all)) text += " " + difference + ";";
  throw UsageError(text + " give every rank the same flags, environment and configuration file");
}

}  // namespace smp
