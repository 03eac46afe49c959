// api/files/file_share.cpp: every rank hears what each sees and owns, and so knows who reads what.
#include "api/files/file_share.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>

#include "api/files/model_exchange.h"
#include "api/rank/exchange.h"
#include "api/rank/rank.h"
#include "smp/distributed_model.h"

namespace smp {
namespace {

using checkpoints::NamedTensor;

/// What a rank tells the others: whether it speaks, its files, and a character for each tensor: '1'
/// if it owns that and reads first of those that hold its slices.
using Told = std::tuple<bool, std::vector<std::uint64_t>, std::string>;

std::vector<std::uint64_t> numbers_of(const std::vector<base::InputFile::Identity>& files) {
  std::vector<std::uint64_t> numbers;
  for (const auto& file : files) numbers.insert(numbers.end(), file.begin(), file.end());
  return numbers;
}

std::string owned_by(const DistributedModelBase& model, const std::vector<NamedTensor>& tensors) {
  std::string owned;
  for (const auto& named : tensors) owned += model.owns(named.tensor) ? '1' : '0';
  return owned;
}

/// Returns what the one who speaks reads: all but what others do who see the same files.
std::vector<bool> left_to(const Told& speaker, const std::vector<Told>& all, std::size_t count) {
  std::vector<bool> reads(count, true);
  for (const auto& [speaks, files, owned] : all) {
    if (speaks || files != std::get<1>(speaker)) continue;
    for (std::size_t i = 0; i < std::min(count, owned.size()); ++i) {
      if (owned[i] == '1') reads[i] = false;
    }
  }
  return reads;
}

}  // namespace

FileShare share_files(const DistributedModelBase& model, const Rank& rank,
                      const std::vector<NamedTensor>& tensors,
                      const std::vector<base::InputFile::Identity>& seen, const char* what) {
  const bool first = rank.topology().tp_rank() == 0;
  const bool speaks = first && rank.is_first_stage();
  if (!model.partitioned()) return {std::vector<bool>(tensors.size(), speaks), speaks};
  const Told own(speaks, numbers_of(seen), first ? owned_by(model, tensors) : std::string());
  const auto all = gather_values(model_holders(rank), own, what);
  const auto speaker =
      std::find_if(all.begin(), all.end(), [](const Told& told) { return std::get<0>(told); });
  if (speaks) return {left_to(own, all, tensors.size()), true};
  std::vector<bool> reads(tensors.size());
  const bool sees = speaker != all.end() && std::get<1>(*speaker) == std::get<1>(own);
  for (std::size_t i = 0; i < reads.size(); ++i)
    reads[i] = sees && first && model.owns(tensors[i].tensor);
  return {reads, false};
}

}  // namespace smp
