// api/files/optimizer_load.h: a dict of an optimizer's state, checked on all ranks before any of it
// is used.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/files/optimizer_names.h"
#include "api/optimizer/whole_tensors.h"
#include "checkpoint/exchange.h"
#include "checkpoint/group_match.h"
#include "d2d/collectives/communicator.h"
#include "smp/state_dict.h"

namespace smp {

/// Returns ParameterNames of `optimizer`, which is of a kind that optimizer_fields.h knows.
/// Collective over `ranks`.
/// @throws UnsupportedError  on all of them: on some rank it is of another kind, or has parameters
///                           of another model.
ParameterNames names_on_all(const d2d::Communicator& ranks, const DistributedModelBase& model,
                            torch::optim::Optimizer& optimizer, const char* what);

/// What a dict has for one optimizer, and the way of its values to the ranks that step the
/// parameters. All of `ranks` make it and call the same functions in the same order, between steps.
/// Threads: the rank's; suspends.
class OptimizerLoad {
 public:
  /// State of the parameters that are on this rank; nullptr: none.
  struct NewState {
    std::vector<std::pair<at::Tensor, std::unique_ptr<torch::optim::OptimizerParamState>>> states;
    std::vector<std::pair<at::Tensor, at::Tensor>> masters;  ///< of parameters
  };

  /// Checks the dicts that the ranks of `ranks` give against `optimizer`; changes nothing.
  /// @throws UsageError        they do not fit it, with everything that is wrong
  /// @throws UnsupportedError  as names_on_all()
  OptimizerLoad(const DistributedModelBase& model, torch::optim::Optimizer& optimizer,
                const d2d::Communicator& ranks, const StateDict& dict);

  /// Returns a hash of the dicts. Collective.
  std::uint64_t fingerprint() const {
    return exchange_.fingerprint(std::vector<bool>(exchange_.tensors().size(), true));
  }
  /// Sets the options of all groups. Tells nobody, and does not suspend.
  void set_options(torch::optim::Optimizer& optimizer) const;
  /// Brings the state of the parameters that `optimizer` has on this rank, but for those that were
  /// added to it since. @throws as checkpoints::Exchange::deliver()
  NewState fetch(torch::optim::Optimizer& optimizer);
  /// Puts it in; masters of parameters that the dict has none of go.
  static void put(torch::optim::Optimizer& optimizer, NewState state);

 private:
  using Fields = std::map<std::string, std::map<std::string, std::string>>;  // see check_states()

  void read_numbers();
  void warn_of_masters() const;
  void check(torch::optim::Optimizer& optimizer,
             const std::vector<std::vector<std::vector<std::string>>>& groups_of_all);
  template <class Kind>
  std::string check_entries(const Kind& kind);
  template <class Kind>
  void find_saved_groups(const Kind& kind, std::string& complaints);
  template <class Kind>
  std::string check_states(const Kind& kind);
  std::string problem_of_state(std::size_t number, const at::Tensor& parameter) const;

  ParameterNames names_;
  WholeTensors whole_;
  checkpoints::Exchange exchange_;
  std::vector<OptimizerEntry> entries_;        // of exchange_.tensors(); parameters by first names
  std::map<std::string, at::Tensor> numbers_;  // options, and the number of groups, by name
  std::vector<checkpoints::ParameterGroup> saved_;
  std::vector<std::size_t> source_;  // by group of the optimizer: that of the dict
  std::unordered_map<std::string, std::size_t> group_of_;  // of the optimizer, by first name
};

}  // namespace smp
