// server/modules/setting_flags.h: the switches of a rank's models, each with a number.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch::nn {
class Module;
}

namespace smp::server {

/// The training flag of every module and the requires_grad flag of every parameter of the models of
/// one rank. Numbers are dense, and stay until renumber(). Threads: the rank's.
class SettingFlags {
 public:
  /// The numbers of the flags of a module and everything below it.
  using Subtree = std::vector<std::uint32_t>;

  /// Adds the modules and parameters of a model; all numbers are new.
  void attach(torch::nn::Module& root);
  /// Removes a model that ends; its modules may have ended already. Its flags keep their numbers,
  /// and are ignored.
  void detach(const torch::nn::Module& root) noexcept;
  /// Gives all flags new numbers if a model is gone. @return true if it did
  bool renumber();

  std::size_t size() const noexcept { return flags_.size(); }
  bool get(std::uint32_t number) const noexcept;
  void set(std::uint32_t number, bool on) noexcept;
  /// True if all flags, by number, are as in `values`; flags of models that are gone are ignored.
  bool are(const std::vector<char>& values) noexcept;

  /// Returns the flags of `module` and everything below it; empty for a module that was not
  /// attached. Found once per module.
  const Subtree& subtree(const torch::nn::Module& module) {
    return &module == last_module_ ? *last_subtree_ : find_subtree(module);
  }
  /// Returns the number of the flag of `parameter`, the same on all ranks; nullopt if it belongs to
  /// no model.
  [[nodiscard]] std::optional<std::uint32_t> number_of(const at::Tensor& parameter) const;
  /// Returns a hash of the training flags of all modules as they are now.
  std::uint64_t training_key() const noexcept;
  /// Describes flag `number` in the state `on`, for messages: "module 'encoder.drop' in evaluation
  /// mode", "parameter 'head.weight' frozen (requires_grad = false)".
  std::string describe(std::size_t number, bool on) const;

 private:
  struct Flag {
    const torch::nn::Module* root = nullptr;
    torch::nn::Module* module = nullptr;  // either a module or a parameter; neither: it is gone
    at::Tensor parameter;
    std::string name;
    bool gone() const noexcept { return module == nullptr && !parameter.defined(); }
  };
  void find_all();
  void add_module(torch::nn::Module& module, const torch::nn::Module& root,
                  const std::string& path);
  const Subtree& find_subtree(const torch::nn::Module& module);
  void list(const torch::nn::Module& module, std::vector<char>& seen, Subtree& part) const;
  void find_late_places() noexcept;
  bool those_left_are(const std::vector<char>& values) const noexcept;

  std::vector<torch::nn::Module*> roots_;
  bool outdated_ = false;  // a model is gone
  std::vector<Flag> flags_;
  std::vector<const bool*> places_;           // by number: where a flag can be read at once
  std::vector<std::uint32_t> without_place_;  // parameters that have never required a gradient
  std::unordered_map<const void*, std::uint32_t> numbers_;  // by Module or TensorImpl
  std::unordered_map<const torch::nn::Module*, Subtree> subtrees_;
  const torch::nn::Module* last_module_ = nullptr;  // the last asked for: a call asks often
  const Subtree* last_subtree_ = nullptr;
};

}  // namespace smp::server
