// fuzz/acts.h: what a random constructor's statements do.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fuzz/construction.h"
#include "support/dice.h"

namespace smp::fuzz {

/// A constructor that runs: its variables, and the module that it fills.
class Builder {
 public:
  /// What ends the fact of a statement that threw.
  static constexpr const char* kThrows = " throws";

  explicit Builder(bool delayed) : delayed_(delayed) {}

  /// Runs the statements for a new module. An exception ends one statement, as if it were caught.
  void build(torch::nn::Module& module, const std::vector<Act>& acts);
  void run(const std::vector<Act>& acts);

  at::Tensor& pick(Dice& dice);
  /// One of floating type, or made so.
  at::Tensor floats(Dice& dice);
  void add(const at::Tensor& made) { variables_.push_back(made); }
  /// What a member of the module would hold, unregistered.
  void keep(const at::Tensor& member);
  /// Something that the program saw: it must see the same.
  void see(const std::string& fact) { seen_.push_back(fact); }

  torch::nn::Module& module() { return *module_; }
  /// Notes the parameters of a layer as this module's.
  void own(const torch::nn::Module& layer);
  /// Registers a parameter, unless a module has it that may live elsewhere: then a copy.
  void register_parameter(const at::Tensor& parameter);
  std::string fresh_name() { return "t" + std::to_string(names_++); }
  /// Whether it runs under the scope.
  bool delayed() const { return delayed_; }

  const std::vector<at::Tensor>& members() const { return members_; }
  const std::vector<std::string>& seen() const { return seen_; }

 private:
  bool delayed_;
  torch::nn::Module* module_ = nullptr;
  std::vector<at::Tensor> variables_, members_;
  std::vector<std::string> seen_;
  std::map<const void*, torch::nn::Module*> owners_;  // of parameters
  int names_ = 0;
};

/// A kind of statement.
struct Row {
  const char* text;
  int weight;
  bool holds_others;
  void (*run)(Builder& builder, Dice& dice, const std::vector<Act>& inner);
};
const std::vector<Row>& rows();

}  // namespace smp::fuzz
