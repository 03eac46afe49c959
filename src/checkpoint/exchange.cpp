// checkpoint/exchange.cpp: every rank knows who has and who wants what, so that each knows the
// transfers that it takes part in without being asked.
#include "checkpoint/exchange.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/check.h"
#include "base/text/progress.h"
#include "checkpoint/checksum.h"
#include "d2d/tensors/tensor_data.h"
#include "smp/codec.h"

namespace smp::checkpoint {
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

std::uint64_t hash_of(const at::Tensor& tensor) {
  const auto data = d2d::contiguous_data(tensor.cpu());
  return checksum(data.numel() > 0 ? data.const_data_ptr() : nullptr, data.nbytes());
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

/// Reads every tensor that some rank wants and this rank may have to give, so that a failure shows
/// before anything is delivered; only if the offer says `read_first`. Throws on all ranks if one
/// fails.
void Exchange::require_readable(const std::vector<std::string>& wishes) const {
  std::exception_ptr problem;
  try {
    for (std::size_t i = 0; own_.read_first && i < tensors_.size(); ++i) {
      const bool wanted = std::any_of(wishes.begin(), wishes.end(),
                                      [i](const std::string& wish) { return wish[i] == '1'; });
      if (wanted && gives(ranks_.rank(), i)) static_cast<void>(own_values(i));
    }
  } catch (...) {
    problem = std::current_exception();
  }
  agree(problem);
}

void Exchange::compare_values(const std::vector<std::string>& wishes) const {
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
  std::exception_ptr problem;
  try {
    for (std::size_t k = 0; k < several.size(); ++k) {
      if (gives(ranks_.rank(), several[k])) own[k] = hash_of(own_values(several[k]));
    }
  } catch (...) {
    problem = std::current_exception();
  }
  agree(problem);
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
                       const std::function<void(std::size_t, const at::Tensor&)>& take) {
  const auto wishes = wishes_of_all(wanted);
  require_readable(wishes);
  compare_values(wishes);
  const int self = ranks_.rank();
  std::exception_ptr problem;  // the first; transfers go on, since others wait for them
  const auto attempt = [&](auto&& action) {
    try {
      action();
    } catch (const PeerLostError&) {
      throw;
    } catch (const std::exception&) {
      if (!problem) problem = std::current_exception();
    }
  };
  std::int64_t bytes = 0;
  for (const auto& info : tensors_) bytes += size_of(info);
  base::Progress progress(what_, bytes, base::Progress::Unit::kBytes);
  bytes = 0;
  for (std::size_t i = 0; i < tensors_.size(); bytes += size_of(tensors_[i++])) {
    progress.at(bytes);
    int giver = -1;
    for (int r = ranks_.size() - 1; r >= 0; --r) giver = gives(r, i) ? r : giver;
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
    if (gives(self, i) && (wants || sends || reads_together(i)))
      attempt([&] { values = own_values(i); });
    if (sends && !values.defined()) values = d2d::new_tensor(info.sizes, info.dtype).zero_();
    if (sends || (wants && !gives(self, i))) {
      const auto root = members[0];
      values = ranks_.among(d2d::Members(std::move(members)))
                   .broadcast_tensor(values, info.sizes, info.dtype, root);
    }
    if (wants && values.defined() && !problem) attempt([&] { take(i, values); });
  }
  agree(problem);
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

}  // namespace smp::checkpoint
