// api/setting_agreement.cpp: hashes, then a line of text for each setting.
#include "api/setting_agreement.h"

#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "base/config.h"

namespace smp {
namespace {

using Lines = std::vector<std::string>;

// "microbatches = 2" and "flag --smp.microbatches", by turns, in the same order on every rank.
std::string text_of(const base::ResolvedConfig& config) {
  std::string text;
  for (const auto& row : config.shared_rows()) {
    text += base::concat(row.key, " = ", row.value, '\n', row.origin, '\n');
  }
  return text;
}

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string said_by(std::size_t rank, const Lines& lines, std::size_t at) {
  return base::concat("rank ", rank, " has ", lines.at(at), " (", lines.at(at + 1), ")");
}

// "rank 0 has ..., rank 1 has ...", of each setting in which some rank differs from the first.
Lines differences(const std::vector<Lines>& all) {
  Lines found;
  for (std::size_t at = 0; at < all[0].size(); at += 2) {
    const auto other = std::find_if(all.begin(), all.end(),
                                    [&](const Lines& lines) { return lines.at(at) != all[0][at]; });
    if (other == all.end()) continue;
    found.push_back(said_by(0, all[0], at) + ", " +
                    said_by(static_cast<std::size_t>(other - all.begin()), *other, at));
  }
  return found;
}

}  // namespace

void require_same_settings(const GatherTexts& gather, const base::ResolvedConfig& config) {
  const auto hashes = gather(std::to_string(config.hash()));
  if (std::equal(hashes.begin() + 1, hashes.end(), hashes.begin())) return;
  std::vector<Lines> all;
  for (const auto& text : gather(text_of(config))) all.push_back(lines_of(text));
  std::string text = "the settings of the ranks differ:";
  for (const auto& difference : differences(all)) text += " " + difference + ";";
  throw UsageError(text + " give every rank the same flags, environment and configuration file");
}

}  // namespace smp
