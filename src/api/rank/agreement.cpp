// api/rank/agreement.cpp: hashes first; where they differ, facts by their names.
#include "api/rank/agreement.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <utility>

#include "api/rank/exchange.h"
#include "base/check.h"
#include "base/random.h"

namespace smp {
namespace {

/// A name, and which fact of that name.
using Key = std::pair<std::string_view, int>;
using Known = std::map<Key, const Fact*>;

/// Adds the keys that are new to `keys`. Refers to `facts`.
Known known_of(const Facts& facts, std::vector<Key>& keys) {
  Known known;
  std::map<std::string_view, int> counts;
  for (const auto& fact : facts) {
    const Key key(fact.name, counts[fact.name]++);
    known.emplace(key, &fact);
    keys.push_back(key);
  }
  return known;
}

/// nullptr: unknown.
const Fact* find(const Known& known, const Key& key) {
  const auto found = known.find(key);
  return found == known.end() ? nullptr : found->second;
}

bool alike(const Fact* a, const Fact* b) {
  return a == nullptr || b == nullptr ? a == b : a->value == b->value;
}

std::string said_by(GlobalRank rank, const Fact* fact) {
  if (fact == nullptr) return base::concat("unknown on rank ", rank);
  const auto origin = fact->origin.empty() ? std::string() : " (" + fact->origin + ")";
  return base::concat(fact->value, origin, " on rank ", rank);
}

std::string hash_of(const Facts& facts) {
  std::uint64_t hash = facts.size();
  for (const auto& fact : facts) {
    hash = base::mix_key(base::mix_key(hash, fact.name), fact.value);
  }
  return std::to_string(hash);
}

}  // namespace

std::string text_of(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

std::string to_bytes(const Facts& facts) {
  Writer writer;
  writer.put(facts);
  return std::move(writer).take().bytes;
}

Facts to_facts(const std::string& bytes) {
  Packet packet{bytes, {}};
  return Reader(packet).get<Facts>();
}

std::vector<std::string> differences(const std::vector<GlobalRank>& ranks,
                                     const std::vector<Facts>& all) {
  std::vector<Key> keys;
  std::vector<Known> known;
  known.reserve(all.size());
  for (const auto& facts : all) known.push_back(known_of(facts, keys));
  std::vector<std::string> found;
  std::map<Key, bool> seen;
  for (const auto& key : keys) {
    if (std::exchange(seen[key], true)) continue;
    const auto* first = find(known[0], key);
    const auto other = std::find_if(known.begin(), known.end(), [&](const Known& of_rank) {
      return !alike(find(of_rank, key), first);
    });
    if (other == known.end()) continue;
    const auto rank = ranks[static_cast<std::size_t>(other - known.begin())];
    found.push_back(base::concat(key.first, ": ", said_by(ranks[0], first), ", ",
                                 said_by(rank, find(*other, key))));
  }
  return found;
}

void require_same(const GatherTexts& gather, const std::vector<GlobalRank>& ranks, const Facts& own,
                  const char* whose, const char* remedy) {
  constexpr std::size_t kMost = 10;
  const auto hashes = gather(hash_of(own));
  if (std::equal(hashes.begin() + 1, hashes.end(), hashes.begin())) return;
  std::vector<Facts> all;
  for (const auto& bytes : gather(to_bytes(own))) all.push_back(to_facts(bytes));
  const auto found = differences(ranks, all);
  auto text = base::concat(whose, " differ: ");
  for (std::size_t i = 0; i < std::min(kMost, found.size()); ++i) text += found[i] + "; ";
  if (found.size() > kMost) text += base::concat("and ", found.size() - kMost, " more; ");
  throw UsageError(text + remedy);
}

void require_same(const d2d::Communicator& ranks, const Facts& own, const char* whose,
                  const char* remedy) {
  require_same(
      [&](const std::string& text) {
        return gather_values(ranks, text, "the check that ranks agree");
      },
      ranks.members().ranks(), own, whose, remedy);
}

void require_equal(const d2d::Communicator& ranks, std::uint64_t value, const char* what,
                   const char* remedy) {
  require_same(ranks, {{what, std::to_string(value)}}, "the ranks", remedy);
}

void require_equal_hashes(const d2d::Communicator& ranks, std::uint64_t hash, const char* what,
                          const char* remedy) {
  const auto all = gather_values(ranks, std::to_string(hash), "the check that ranks agree");
  for (std::size_t i = 1; i < all.size(); ++i) {
    SMP_REQUIRE(all[i] == all[0], "rank ", ranks.members()[static_cast<int>(i)], " and rank ",
                ranks.members()[0], " differ in ", what, "; ", remedy);
  }
}

}  // namespace smp
