// fuzz/nodes.h: builds the models of a program, and runs its modules. One class interprets the
// instructions of all nodes, so a new program needs no compiler.
#pragma once

#include <torch/torch.h>

#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/program.h"
#include "smp/smp.h"

namespace smp::fuzz {

using torch::Tensor;
using Values = std::vector<Tensor>;

class Model;

/// A module written in instructions. forward: x, y [rows, kWidth] (y may be undefined), tokens
/// [rows] of int64; returns 1 to 3 tensors [rows, kWidth].
struct NodeImpl : torch::nn::Module {
  NodeImpl(const Model& whole, int number);
  virtual Values forward(const Tensor& x, const Tensor& y, const Tensor& tokens);

  Tensor weight, table, count, average;
  // State that instructions write.
  Tensor scratch, auxiliary;
  std::vector<Tensor> kept;
  std::int64_t counter = 0;

  const Model* model;  // all modules of this model
  int number;
};

/// The same, called by a method whose result always holds the same number of tensors, so that it
/// can be promised.
struct FixedNodeImpl : NodeImpl {
  using NodeImpl::NodeImpl;
  std::array<Tensor, 3> fixed(const Tensor& x, const Tensor& y, const Tensor& tokens);
};

/// A program's model on one rank, or of the reference.
class Model {
 public:
  /// @param routed  with the program's routed modules, else plain LibTorch
  /// @param seed    of the values of parameters and buffers
  Model(const Program& program, bool routed, std::uint64_t seed);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  struct Unit {
    std::shared_ptr<torch::nn::Module> module;
    std::function<Values(const Tensor& x, const Tensor& y, const Tensor& tokens)> call;
    NodeImpl* node = nullptr;
  };
  const Unit& unit(int number) const { return units_[static_cast<std::size_t>(number)]; }
  const Program& program() const { return program_; }
  std::shared_ptr<NodeImpl> root() const { return root_; }

 private:
  template <class Holder, class Options>
  void add_layer(const Options& options);
  void add(const Module& module, int number);
  void add_node(const Module& module, int number);
  template <bool Routed>
  void add_leaf(Kind kind);
  void adopt();
  void draw_values(std::uint64_t seed);

  const Program& program_;
  bool routed_;
  std::vector<Unit> units_;
  std::shared_ptr<NodeImpl> root_;
};

/// Whether an instruction threw it, here or on another rank. Programs handle nothing else: what the
/// library refuses they let pass.
bool thrown_by_node(const std::exception& error);

/// Number of the running microbatch, and what its loss counts; set by the loop of the reference,
/// which has no session.
extern int reference_microbatch;
extern double reference_weight;

}  // namespace smp::fuzz
