// api/files/optimizer_names.h: what names of an optimizer's state dict say.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

namespace smp {

class DistributedModelBase;

/// A name of an optimizer's state dict in its parts.
struct OptimizerEntry {
  enum class Kind {
    kOptimizer,  ///< "optimizer.Adam"
    kOption,     ///< "param_groups.0.lr"
    kMember,     ///< "param_groups.0.params.encoder.weight"
    kState,      ///< "state.encoder.weight.exp_avg"
    kOther,
  };
  Kind kind = Kind::kOther;
  std::size_t group = 0;  ///< of an option or a member
  std::string parameter;  ///< of a member or a state
  std::string field;      ///< "Adam", "lr", "exp_avg"

  static OptimizerEntry parse(const std::string& name);
  std::string name() const;
};

/// The names under which an optimizer's parameters are known: those of the model; the n-th
/// parameter of group 0 that is not the model's is "param_groups.0.n". Threads: the rank's.
class ParameterNames {
 public:
  /// @throws UnsupportedError  the optimizer has parameters of another model.
  ParameterNames(const DistributedModelBase& model, torch::optim::Optimizer& optimizer);

  /// Returns the first name of a parameter of the model or the optimizer.
  const std::string& of(const at::Tensor& parameter) const { return *find(parameter); }
  /// Returns the same, or nullptr if it is of neither.
  const std::string* find(const at::Tensor& parameter) const;
  /// Returns the parameter that has `name` among its names, a buffer too, or an undefined tensor.
  at::Tensor parameter(const std::string& name) const;
  /// Returns the first names of the parameters in each group that are on this rank.
  const std::vector<std::vector<std::string>>& groups() const noexcept { return groups_; }

  /// Returns the name of a parameter that is not the model's.
  static std::string nameless(std::size_t group, std::size_t number);
  /// Returns `name` if it is the model's; of a nameless parameter the name that it has if its
  /// group has another number.
  static std::string moved(const std::string& name, const std::vector<std::size_t>& new_numbers);
  /// True if `name` is that of a nameless parameter.
  static bool is_nameless(const std::string& name);

 private:
  std::unordered_map<const void*, std::string> first_;
  std::unordered_map<std::string, at::Tensor> tensors_;
  std::vector<std::vector<std::string>> groups_;
};

}  // namespace smp
