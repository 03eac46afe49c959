// checkpoint/exchange.cpp: every rank knows who has and who wants what, so that each knows the
// transfers that it takes part in without being asked.
#include "checkpoint/exchange.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "base/text/progress.h"
#include "checkpoint/first_difference.h"
#include "checkpoint/load_plan.h"
#include "d2d/tensors/tensor_data.h"
#include "d2d/tensors/value_hash.h"
#include "smp/codec.h"

namespace smp::checkpoints {
namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

template <class... Values>
d2d::Payload pack(const Values&... values) {
  Writer writer;
  (writer.put(values), ...);
  Packet packet = std::move(writer).take();
  return {std::move(packet.bytes), std::move(packet.tensors)};
}

std::int64_t size_of(const TensorInfo& info) {
  return c10::multiply_integers(info.sizes) *
         static_cast<std::int64_t>(c10::elementSize(info.dtype));
}

}  // namespace

/// A letter for the kind, then the text.
std::string described(const std::exception_ptr& problem) {
  if (!problem) return {};
  try {
    std::rethrow_exception(problem);
  } catch (const ResourceError& error) {
    return std::string("R") + error.what();
  } catch (const UnsupportedError& error) {
    return std::string("N") + error.what();
  } catch (const PeerLostError&) {
    throw;  // there is nobody to tell
  } catch (const std::exception& error) {
    return std::string("U") + error.what();
  }
}

void throw_described(const std::string& described, const std::string& where) {
  if (described.empty()) return;
  const auto text = base::concat(where, ": ", described.substr(1));
  if (described[0] == 'R') throw ResourceError(text);
  if (described[0] == 'N') throw UnsupportedError(text);
  throw UsageError(text);
}

Exchange::Exchange(const d2d::Communicator& ranks, Offer own, const char* what)
    : ranks_(ranks), own_(std::move(own)), what_(what) {
  std::vector<std::string> names;
  std::vector<std::int64_t> dtypes;
  std::vector<std::vector<std::int64_t>> sizes;
  for (const auto& info : own_.tensors) {
    names.push_back(info.name);
    dtypes.push_back(static_cast<std::int64_t>(info.dtype));
    sizes.push_back(info.sizes);
    if (own_.problem.empty() && !d2d::is_sendable_dtype(info.dtype)) {
      own_.problem = base::concat(info.name, ": tensors of type ", info.dtype,
                                  " cannot be sent to other ranks");
    }
  }
  read_offers(ranks_.all_gather(pack(own_.problem, names, dtypes, sizes), what_));
}

void Exchange::read_offers(const std::vector<d2d::Payload>& offers) {
  std::unordered_map<std::string, std::size_t> known;
  std::vector<int> first;  // position that gave it first
  places_.resize(offers.size());
  std::string problem;
  for (std::size_t position = 0; position < offers.size(); ++position) {
    Packet packet{offers[position].bytes, {}};
    Reader reader(packet);
    const auto failed = reader.get<std::string>();
    const auto names = reader.get<std::vector<std::string>>();
    const auto dtypes = reader.get<std::vector<std::int64_t>>();
    const auto sizes = reader.get<std::vector<std::vector<std::int64_t>>>();
    const auto member = ranks_.members()[static_cast<int>(position)];
    if (problem.empty() && !failed.empty()) {
      problem = base::concat("rank ", member, ": ", what_, ": ", failed);
    }
    places_[position].resize(tensors_.size(), kNone);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const TensorInfo info{names[i], static_cast<c10::ScalarType>(dtypes[i]), sizes[i]};
      const auto [found, is_new] = known.emplace(info.name, tensors_.size());
      if (is_new) {
        tensors_.push_back(info);
        first.push_back(static_cast<int>(position));
      }
      const auto& other = tensors_[found->second];
      if (problem.empty() && !(info == other)) {
        problem = base::concat(what_, ": ranks ", ranks_.members()[first[found->second]], " and ",
                               member, " have different tensors \"", info.name, "\": ", other.dtype,
                               ' ', c10::IntArrayRef(other.sizes), " and ", info.dtype, ' ',
                               c10::IntArrayRef(info.sizes));
      }
      places_[position].resize(tensors_.size(), kNone);
      places_[position][found->second] = i;
    }
  }
  for (auto& places : places_) places.resize(tensors_.size(), kNone);
  SMP_REQUIRE(problem.empty(), problem);
}

// ---- the same values ---------------------------------------------------------------------------

/// A tensor as one rank gives it, for one tensor that others are given for too.
struct Exchange::Given {
  std::size_t group, tensor;
  int position;
};

std::vector<Exchange::Given> Exchange::given_several_times(
    const std::vector<SameValues>& groups) const {
  std::vector<Given> all;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto first = all.size();
    for (const std::size_t tensor : groups[group].tensors) {
      for (int position = 0; position < ranks_.size(); ++position) {
        if (gives(position, tensor)) all.push_back({group, tensor, position});
      }
    }
    if (all.size() == first + 1) all.pop_back();
  }
  return all;
}

void Exchange::require_same(const std::vector<SameValues>& groups) {
  compared_ = true;
  const auto all = given_several_times(groups);
  if (all.empty()) return;
  std::vector<std::uint64_t> own;
  agree(attempt([&] {
    for (const auto& given : all) {
      if (given.position != ranks_.rank()) continue;
      own.push_back(d2d::value_hash(own_values(given.tensor).to(groups[given.group].dtype)));
    }
  }));
  std::vector<std::vector<std::uint64_t>> hashes;
  for (const auto& payload : ranks_.all_gather(pack(own), what_)) {
    Packet packet{payload.bytes, {}};
    hashes.push_back(Reader(packet).get<std::vector<std::uint64_t>>());
  }
  std::vector<std::size_t> next(hashes.size());
  std::size_t first = 0;  // of the group
  std::uint64_t hash_of_first = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto position = static_cast<std::size_t>(all[i].position);
    const auto hash = hashes[position].at(next[position]++);
    if (i == 0 || all[i].group != all[first].group) {
      first = i;
      hash_of_first = hash;
    } else if (hash != hash_of_first) {
      require_same(all[first], all[i], groups[all[i].group].dtype);
    }
  }
}

/// Compares values element by element, on all ranks alike.
void Exchange::require_same(const Given& a, const Given& b, c10::ScalarType dtype) const {
  const auto& name_a = tensors_[a.tensor].name;
  const auto& name_b = tensors_[b.tensor].name;
  const auto rank_a = ranks_.members()[a.position];
  const auto rank_b = ranks_.members()[b.position];
  const auto found = first_difference(on_all(a), on_all(b), dtype);
  if (!found) return;
  const auto element =
      found->place.empty() ? "" : base::concat("element ", c10::IntArrayRef(found->place), " ");
  SMP_REQUIRE(a.tensor != b.tensor, what_, ": ranks ", rank_a, " and ", rank_b,
              " have different values of \"", name_a, "\": ", element, "is ", found->first,
              " on rank ", rank_a, " and ", found->second, " on rank ", rank_b,
              "; give all ranks the same, or only one rank");
  throw UsageError(base::concat(
      what_, ": ",
      two_values_text(
          name_a, name_b,
          base::concat(element, "is ", found->first, " in ", name_a, " (rank ", rank_a, ") and ",
                       found->second, " in ", name_b, " (rank ", rank_b, ")"))));
}

/// Returns the values on all ranks.
at::Tensor Exchange::on_all(const Given& given) const {
  const auto& info = tensors_[given.tensor];
  at::Tensor values;
  agree(attempt([&] {
    if (given.position == ranks_.rank()) values = own_values(given.tensor).cpu();
  }));
  return ranks_.broadcast_tensor(values, info.sizes, info.dtype, ranks_.members()[given.position]);
}

/// Those that give tensors take turns in reading them. Elsewhere ranks may list them in another
/// order.
std::uint64_t Exchange::fingerprint(const std::vector<bool>& chosen) const {
  std::vector<std::uint64_t> own(tensors_.size());
  agree(attempt([&] {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      std::vector<int> givers;
      for (int r = 0; r < ranks_.size(); ++r) {
        if (gives(r, i)) givers.push_back(r);
      }
      const bool reads = givers[i % givers.size()] == ranks_.rank();
      if (chosen[i] && reads) own[i] = d2d::value_hash(own_values(i));
    }
  }));
  std::vector<std::uint64_t> hashes(tensors_.size());
  for (const auto& payload : ranks_.all_gather(pack(own), what_)) {
    Packet packet{payload.bytes, {}};
    const auto some = Reader(packet).get<std::vector<std::uint64_t>>();
    for (std::size_t i = 0; i < hashes.size(); ++i) hashes[i] ^= some.at(i);
  }
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (!chosen[i]) continue;
    auto hash = base::mix_key(hashes[i], tensors_[i].name);
    hash = base::mix_key(hash, static_cast<std::uint64_t>(tensors_[i].dtype));
    for (const auto size : tensors_[i].sizes) {
      hash = base::mix_key(hash, static_cast<std::uint64_t>(size));
    }
    all += hash;
  }
  return all;
}

// ---- later -------------------------------------------------------------------------------------

Exchange Exchange::kept(const std::vector<bool>& wanted) const {
  const auto wishes = wishes_of_all(wanted);
  Exchange later(*this);
  later.compared_ = true;
  later.own_ = {};
  later.own_.source = own_.source;
  later.own_.read_first = own_.read_first;
  for (auto& places : later.places_) std::fill(places.begin(), places.end(), kNone);
  std::vector<std::size_t> load(later.places_.size());  // bytes that each rank keeps
  std::vector<std::size_t> own;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const bool is_wanted = std::any_of(wishes.begin(), wishes.end(),
                                       [i](const std::string& wish) { return wish[i] == '1'; });
    if (!is_wanted) continue;
    std::size_t keeper = kNone;
    for (std::size_t r = 0; r < load.size(); ++r) {
      if (gives(static_cast<int>(r), i) && (keeper == kNone || load[r] < load[keeper])) keeper = r;
    }
    load[keeper] += tensors_[i].bytes();
    if (static_cast<int>(keeper) == ranks_.rank()) own.push_back(i);
    later.places_[keeper][i] = static_cast<int>(keeper) == ranks_.rank() ? own.size() - 1 : 0;
  }
  agree(attempt([&] { later.own_.read = own_.read_first ? checked_again(own) : copied(own); }));
  return later;
}

/// Returns the values of now of the tensors `numbers`, each once.
std::function<at::Tensor(std::size_t)> Exchange::copied(
    const std::vector<std::size_t>& numbers) const {
  std::vector<at::Tensor> copies;
  for (const std::size_t i : numbers) copies.push_back(d2d::independent_copy(own_values(i)));
  return [copies = std::move(copies)](std::size_t k) mutable {
    return std::exchange(copies.at(k), {});
  };
}

/// Returns the values of a file as they are when they are read, if they are those of now.
std::function<at::Tensor(std::size_t)> Exchange::checked_again(
    const std::vector<std::size_t>& numbers) const {
  std::vector<std::uint64_t> hashes;
  std::vector<std::size_t> places;
  for (const std::size_t i : numbers) {
    hashes.push_back(d2d::value_hash(own_values(i)));
    places.push_back(places_[static_cast<std::size_t>(ranks_.rank())][i]);
  }
  return [read = own_.read, hashes = std::move(hashes), places = std::move(places),
          source = own_.source](std::size_t k) {
    auto values = read(places.at(k));
    SMP_REQUIRE(d2d::value_hash(values) == hashes.at(k), source,
                " has changed between the load and the placement of the model, when it is read; "
                "place the model first, or keep the file as it is until then");
    return values;
  };
}

// ---- who has what ------------------------------------------------------------------------------

bool Exchange::gives(int position, std::size_t index) const {
  return places_[static_cast<std::size_t>(position)][index] != kNone;
}

/// True if this rank gives the tensor and has to read it together with the other ranks that do.
bool Exchange::reads_together(std::size_t index) const {
  if (own_.together.empty() || !gives(ranks_.rank(), index)) return false;
  return own_.together[places_[static_cast<std::size_t>(ranks_.rank())][index]];
}

at::Tensor Exchange::own_values(std::size_t index) const {
  return own_.read(places_[static_cast<std::size_t>(ranks_.rank())][index]).detach();
}

void Exchange::check_own_values(std::size_t index) const {
  if (!own_.check) return static_cast<void>(own_values(index));
  own_.check(places_[static_cast<std::size_t>(ranks_.rank())][index]);
}

/// Returns true if the values are in `place` now.
bool Exchange::put_own_values(std::size_t index,
                              const std::function<at::Tensor(std::size_t)>& place) const {
  if (!own_.read_into || !place) return false;
  const auto target = place(index);
  if (!target.defined()) return false;
  own_.read_into(places_[static_cast<std::size_t>(ranks_.rank())][index], target);
  return true;
}

std::vector<std::string> Exchange::wishes_of_all(const std::vector<bool>& wanted) const {
  SMP_ASSERT(wanted.size() == tensors_.size());
  d2d::Payload own;
  for (const bool is_wanted : wanted) own.bytes += is_wanted ? '1' : '0';
  std::vector<std::string> wishes;
  for (auto& payload : ranks_.all_gather(std::move(own), what_)) {
    wishes.push_back(std::move(payload.bytes));
  }
  return wishes;
}

/// Checks every tensor that some rank wants and this rank may have to give, so that a failure shows
/// before anything is delivered; only if the offer says `read_first`. Throws on all ranks if one
/// fails.
void Exchange::require_readable(const std::vector<std::string>& wishes) const {
  agree(attempt([&] {
    for (std::size_t i = 0; own_.read_first && i < tensors_.size(); ++i) {
      const bool wanted = std::any_of(wishes.begin(), wishes.end(),
                                      [i](const std::string& wish) { return wish[i] == '1'; });
      if (wanted && gives(ranks_.rank(), i)) check_own_values(i);
    }
  }));
}

void Exchange::compare_values(const std::vector<std::string>& wishes) const {
  if (compared_) return;
  std::vector<std::size_t> several;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    int takers = 0;
    for (int r = 0; r < ranks_.size(); ++r) {
      takers += gives(r, i) && wishes[static_cast<std::size_t>(r)][i] == '1';
    }
    if (takers > 1) several.push_back(i);
  }
  if (several.empty()) return;
  std::vector<std::uint64_t> own(several.size());
  agree(attempt([&] {
    for (std::size_t k = 0; k < several.size(); ++k) {
      if (gives(ranks_.rank(), several[k])) own[k] = d2d::value_hash(own_values(several[k]));
    }
  }));
  const auto all = ranks_.all_gather(pack(own), what_);
  std::vector<std::vector<std::uint64_t>> hashes;
  for (const auto& payload : all) {
    Packet packet{payload.bytes, {}};
    hashes.push_back(Reader(packet).get<std::vector<std::uint64_t>>());
  }
  for (std::size_t k = 0; k < several.size(); ++k) {
    int first = -1;
    for (int r = 0; r < ranks_.size(); ++r) {
      if (!gives(r, several[k])) continue;
      if (first < 0) first = r;
      SMP_REQUIRE(
          hashes[static_cast<std::size_t>(first)][k] == hashes[static_cast<std::size_t>(r)][k],
          what_, ": ranks ", ranks_.members()[first], " and ", ranks_.members()[r],
          " have different values of \"", tensors_[several[k]].name,
          "\"; give all ranks the same, or only one rank");
    }
  }
}

void Exchange::deliver(const std::vector<bool>& wanted,
                       const std::function<void(std::size_t, const at::Tensor&)>& take,
                       const std::function<at::Tensor(std::size_t)>& place) {
  const auto wishes = wishes_of_all(wanted);
  require_readable(wishes);
  compare_values(wishes);
  const int self = ranks_.rank();
  std::exception_ptr problem;  // the first; transfers go on, since others wait for them
  const auto note = [&](std::exception_ptr own) {
    if (!problem) problem = std::move(own);
  };
  std::int64_t bytes = 0;
  for (const auto& info : tensors_) bytes += size_of(info);
  base::Progress progress(what_, bytes, base::Progress::Unit::kBytes);
  bytes = 0;
  for (std::size_t i = 0; i < tensors_.size(); bytes += size_of(tensors_[i++])) {
    progress.at(bytes);
    int giver = -1;
    for (int r = ranks_.size() - 1; r >= 0; --r) giver = gives(r, i) ? r : giver;
    if (giver < 0) continue;  // nobody kept it, since nobody wants it
    std::vector<GlobalRank> members{ranks_.members()[giver]};
    for (int r = 0; r < ranks_.size(); ++r) {
      if (wishes[static_cast<std::size_t>(r)][i] == '1' && !gives(r, i)) {
        members.push_back(ranks_.members()[r]);
      }
    }
    const bool wants = wanted[i];
    const bool sends = giver == self && members.size() > 1;
    const auto& info = tensors_[i];
    at::Tensor values;
    if (gives(self, i) && (wants || sends || reads_together(i))) {
      note(attempt([&] {
        const bool alone = wants && !sends && !problem;
        if (!alone || !put_own_values(i, place)) values = own_values(i);
      }));
    }
    if (sends && !values.defined()) values = d2d::new_tensor(info.sizes, info.dtype).zero_();
    if (sends || (wants && !gives(self, i))) {
      const auto root = members[0];
      values = ranks_.among(d2d::Members(std::move(members)))
                   .broadcast_tensor(values, info.sizes, info.dtype, root);
    }
    if (wants && values.defined() && !problem) note(attempt([&] { take(i, values); }));
  }
  agree(problem);
}

std::exception_ptr attempt(const std::function<void()>& action) {
  try {
    action();
    return nullptr;
  } catch (const PeerLostError&) {
    throw;
  } catch (const std::exception&) {
    return std::current_exception();
  }
}

void agree(const d2d::Communicator& ranks, const std::exception_ptr& own_problem,
           const char* what) {
  const auto all = ranks.all_gather({described(own_problem), {}}, what);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto position = static_cast<int>(i);
    if (position == ranks.rank() && own_problem) std::rethrow_exception(own_problem);
    throw_described(all[i].bytes, base::concat("rank ", ranks.members()[position]));
  }
}

}  // namespace smp::checkpoints
