// samples/ncf/ratings.cpp: see the header.
#include "ratings.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <stdexcept>
#include <utility>

namespace ncf {
namespace {

constexpr std::int64_t kGroupSize = 16;      // items that the same users like
constexpr std::uint64_t kOwnGroupShare = 9;  // of ten items, those of the user's group

/// SplitMix64 (Steele et al., OOPSLA 2014): a number for each key, the same everywhere.
std::uint64_t mixed(std::uint64_t key) {
  key += 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return key ^ (key >> 31);
}
std::uint64_t mixed(std::uint64_t a, std::uint64_t b) { return mixed(mixed(a) ^ b); }

struct Line {
  std::string user, item;
  double time;
};

/// The part up to the next separator, which is taken out of `text` with it.
std::string take_field(std::string& text, const std::string& separator) {
  const auto end = text.find(separator);
  if (end == std::string::npos) throw std::invalid_argument("too few fields");
  auto field = text.substr(0, end);
  text.erase(0, end + separator.size());
  return field;
}

Line parse(std::string text) {
  const std::string separator = text.find("::") != std::string::npos   ? "::"
                                : text.find('\t') != std::string::npos ? "\t"
                                                                       : ",";
  Line line;
  line.user = take_field(text, separator);
  line.item = take_field(text, separator);
  take_field(text, separator);  // the rating
  line.time = std::stod(text);
  return line;
}

std::int64_t number_of(std::map<std::string, std::int64_t>& numbers, const std::string& name) {
  return numbers.emplace(name, static_cast<std::int64_t>(numbers.size())).first->second;
}

torch::Tensor tensor_of(const std::vector<std::int64_t>& numbers) {
  return torch::tensor(numbers, torch::kLong);
}

}  // namespace

Ratings::Ratings(std::vector<std::vector<std::int64_t>> by_user, std::int64_t items,
                 std::uint64_t seed)
    : items_(items), seed_(seed), taken_(std::move(by_user)) {
  for (std::size_t user = 0; user < taken_.size(); ++user) {
    auto& own = taken_[user];
    if (own.size() < 2 || static_cast<std::int64_t>(own.size()) + kOthers > items_) {
      throw std::runtime_error("user " + std::to_string(user) + " took " +
                               std::to_string(own.size()) + " of " + std::to_string(items_) +
                               " items; at least 2 are needed, and " + std::to_string(kOthers) +
                               " that he did not take");
    }
    held_out_.push_back(own.back());
    for (std::size_t i = 0; i + 1 < own.size(); ++i) {
      positives_.emplace_back(static_cast<std::int64_t>(user), own[i]);
    }
    std::sort(own.begin(), own.end());
  }
}

Ratings Ratings::generate(std::int64_t users, std::int64_t items, int per_user,
                          std::uint64_t seed) {
  const auto groups = std::max<std::int64_t>(1, items / kGroupSize);
  std::vector<std::vector<std::int64_t>> by_user(static_cast<std::size_t>(users));
  for (std::int64_t user = 0; user < users; ++user) {
    auto& own = by_user[static_cast<std::size_t>(user)];
    const auto group = static_cast<std::int64_t>(mixed(seed, user) % groups);
    for (std::uint64_t draw = 0; static_cast<int>(own.size()) < per_user; ++draw) {
      const auto key = mixed(mixed(seed, user), draw + 1);
      const bool own_group = key % 10 < kOwnGroupShare;
      const auto place = static_cast<std::int64_t>((key >> 8) % (own_group ? kGroupSize : items));
      const auto item = own_group ? std::min(items - 1, group + groups * place) : place;
      if (std::find(own.begin(), own.end(), item) == own.end()) own.push_back(item);
    }
  }
  return {std::move(by_user), items, seed};
}

Ratings Ratings::read(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + " cannot be read; give a file of ratings");
  std::map<std::string, std::int64_t> users, items;
  std::vector<std::vector<std::pair<double, std::int64_t>>> timed;
  std::string text;
  for (std::size_t number = 1; std::getline(file, text); ++number) {
    if (text.empty() || (number == 1 && text.rfind("userId", 0) == 0)) continue;
    try {
      const auto line = parse(text);
      const auto user = static_cast<std::size_t>(number_of(users, line.user));
      timed.resize(users.size());
      timed[user].emplace_back(line.time, number_of(items, line.item));
    } catch (const std::logic_error&) {  // of parse(), or of std::stod
      throw std::runtime_error(path + ":" + std::to_string(number) + ": '" + text +
                               "' is no line user, item, rating, time");
    }
  }
  std::vector<std::vector<std::int64_t>> by_user;
  for (auto& own : timed) {
    std::stable_sort(own.begin(), own.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    auto& in_order = by_user.emplace_back();
    for (const auto& [time, item] : own) {
      std::erase(in_order, item);  // rated twice: at the later time
      in_order.push_back(item);
    }
  }
  return {std::move(by_user), static_cast<std::int64_t>(items.size()), 0};
}

bool Ratings::taken(std::int64_t user, std::int64_t item) const {
  const auto& own = taken_[static_cast<std::size_t>(user)];
  return std::binary_search(own.begin(), own.end(), item);
}

std::int64_t Ratings::not_taken(std::int64_t user, std::uint64_t key) const {
  for (std::uint64_t attempt = 0;; ++attempt) {
    const auto item = static_cast<std::int64_t>(mixed(key, attempt) % items_);
    if (!taken(user, item)) return item;
  }
}

Samples Ratings::samples(const std::vector<std::size_t>& numbers, std::uint64_t epoch) const {
  std::vector<std::int64_t> users, items;
  std::vector<float> labels;
  for (const auto number : numbers) {
    const auto [user, item] = positives_.at(number / (1 + kNegatives));
    const bool positive = number % (1 + kNegatives) == 0;
    users.push_back(user);
    items.push_back(positive ? item : not_taken(user, mixed(mixed(seed_, epoch), number)));
    labels.push_back(positive ? 1 : 0);
  }
  return {tensor_of(users), tensor_of(items), torch::tensor(labels)};
}

torch::Tensor Ratings::candidates(const std::vector<std::int64_t>& users) const {
  std::vector<std::int64_t> items;
  for (const auto user : users) {
    std::vector<std::int64_t> own{held_out(user)};
    for (std::uint64_t draw = 0; own.size() < 1 + kOthers; ++draw) {
      const auto item = not_taken(user, mixed(mixed(seed_, ~std::uint64_t(user)), draw));
      if (std::find(own.begin(), own.end(), item) == own.end()) own.push_back(item);
    }
    items.insert(items.end(), own.begin(), own.end());
  }
  return tensor_of(items).view({-1, 1 + kOthers});
}

}  // namespace ncf
