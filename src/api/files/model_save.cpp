// api/files/model_save.cpp: the ranks of all replicas around one writer.
#include "api/files/model_save.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>

#include "api/files/model_exchange.h"
#include "api/optimizer/whole_tensors.h"
#include "api/rank/rank.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "checkpoint/exchange.h"

namespace smp {
namespace {

using checkpoints::attempt;

/// What the replicas learn of a file that the first one writes. That may save alone; another one
/// that saves waits for it. Files are numbered by steps with gradients, of which all replicas have
/// run as many; of evaluations and generated tokens each may have run its own number.
class WordOfTheFile {
 public:
  /// @param sliced  the model has slices, of which the first replica has all
  WordOfTheFile(Rank& rank, const DistributedModelBase& model, bool sliced)
      : ranks_(rank.groups().training_ranks().lane(kFirstLane + number_of(model))),
        writer_(ranks_.members()[0]),
        number_(static_cast<std::uint64_t>(rank.shared_steps()) << kBitsOfSaves) {
    if (rank.groups().num_replicas() == 1) return;
    for (const GlobalRank member : ranks_.members()) {
      const auto place = rank.topology().coordinates(member.value());
      const bool first = place.rdp == 0 && (sliced || place.tp == 0);
      if (first) continue;
      others_.push_back(member);
      is_other_ = is_other_ || member == GlobalRank(rank.topology().rank());
    }
    is_writer_ = writer_ == GlobalRank(rank.topology().rank());
  }

  bool is_of_first_replica() const { return !is_other_; }
  /// The writer tells how it ended.
  void tell(const std::exception_ptr& problem) const {
    if (is_writer_) ranks_.tell(number_, {checkpoints::described(problem), {}}, others_, kWhat);
  }
  /// Waits for that. @throws what went wrong there
  void hear() const {
    checkpoints::throw_described(ranks_.hear(number_, writer_, kWhat).bytes,
                                 base::concat("rank ", writer_));
  }

 private:
  static constexpr std::uint64_t kFirstLane = 0x73617665;  // one for each model
  static constexpr int kBitsOfSaves = 20;                  // files between two of them
  static constexpr const char* kWhat = "the file of the first replica";

  static std::uint64_t number_of(const DistributedModelBase& model) {
    const auto& models = SessionState::current().models();
    const auto place = std::find(models.begin(), models.end(), &model);
    return static_cast<std::uint64_t>(place - models.begin());
  }

  const d2d::Communicator ranks_;
  const GlobalRank writer_;
  const std::uint64_t number_;
  std::vector<GlobalRank> others_;
  bool is_other_ = false, is_writer_ = false;
};

}  // namespace

void save_model(const DistributedModelBase& model, const char* what,
                const std::function<std::unique_ptr<ModelSink>(const SavedTensors&)>& open) {
  auto& rank = between_steps(what);
  const WholeTensors whole(rank, model);
  const auto& place = rank.topology();
  const WordOfTheFile word(rank, model, whole.any());
  if (!word.is_of_first_replica()) return word.hear();
  SavedTensors saved{checkpoints::tensors_of(model.base_module()), {}};
  for (const auto& [tensor, names] : saved.tensors) {
    saved.infos.push_back({names[0], tensor.scalar_type(), whole.sizes(tensor)});
  }
  std::unique_ptr<ModelSink> sink;
  auto problem = attempt([&] {
    const bool writes = rank.is_first_stage() && (!whole.any() || place.tp_rank() == 0);
    if (writes) sink = open(saved);
  });
  // A write that fails ends the gathering of this pipeline only: those that hold the other slices
  // hear of it at last.
  problem = attempt([&] {
    gather_model(model, saved.tensors, 0, problem, what,
                 [&](std::size_t i, const at::Tensor& values) {
                   if (sink) sink->write(i, values);
                 });
    if (sink) sink->commit();
  });
  const auto writers = whole.any() ? model_holders(rank) : rank.groups().of(Group::kPp);
  const auto common = attempt([&] { checkpoints::agree(writers, problem, what); });
  word.tell(common);
  if (common) std::rethrow_exception(common);
}

}  // namespace smp
