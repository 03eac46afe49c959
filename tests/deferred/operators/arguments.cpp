// deferred/operators/arguments.cpp: by type and name. Most guesses are refused by the operator;
// there are many.
#include "deferred/operators/arguments.h"

#include <torch/torch.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/dice.h"

namespace smp::deferred {
namespace {

using at::Tensor;
using c10::IValue;
using Shape = std::vector<std::int64_t>;

bool has(const std::string& name, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all{
      {4, 4}, {3},    {2, 3},       {3, 3},       {2, 3, 4},       {4},
      {},     {3, 2}, {2, 3, 8, 8}, {2, 3, 3, 3}, {1, 3, 6, 6, 6}, {2, 4, 4},
      {5},    {3, 4}, {2, 3, 8},    {6, 3, 2},    {2, 2, 4, 4},    {4, 3, 2, 2}};
  return all;
}

/// What the arguments of one attempt have in common.
struct Mood {
  Shape shape;
  at::ScalarType type = at::kFloat;
  double alike = 1;  ///< probability that a tensor has this shape and type
};

class Maker {
 public:
  Maker(const c10::OperatorHandle& op, std::uint64_t seed, const ArgumentKinds& kinds)
      : op_(op), kinds_(kinds), dice_(seed) {
    mood_.shape = dice_.one_of(shapes());
    mood_.type = dice_.chance(.7)
                     ? at::kFloat
                     : dice_.one_of({at::kDouble, at::kLong, at::kBool, at::kComplexFloat,
                                     at::kBFloat16, at::kByte, at::kInt});
    mood_.alike = dice_.one_of({1., .8, .5});
  }

  torch::jit::Stack make() {
    torch::jit::Stack stack;
    for (const auto& argument : op_.schema().arguments()) {
      stack.push_back(make(argument.name(), *argument.real_type(), argument.N().value_or(0)));
    }
    return stack;
  }

 private:
  IValue make(const std::string& name, const c10::Type& type, int count) {
    switch (type.kind()) {
      case c10::TypeKind::TensorType:
        return tensor(name);
      case c10::TypeKind::OptionalType:
        return dice_.chance(.5) ? IValue() : make(name, *type.containedType(0), count);
      case c10::TypeKind::ListType:
        return list(name, *type.containedType(0), count);
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return integer(name);
      case c10::TypeKind::FloatType:
        return dice_.one_of({.5, 1., .1, 0.});
      case c10::TypeKind::NumberType:
        return dice_.chance(.5) ? IValue(std::int64_t{dice_.between(0, 2)})
                                : IValue(dice_.one_of({.5, 1.5}));
      case c10::TypeKind::BoolType:
        return dice_.chance(.5);
      case c10::TypeKind::StringType:
        return text(name);
      case c10::TypeKind::ScalarTypeType:
        return static_cast<std::int64_t>(dice_.one_of({at::kFloat, at::kDouble, at::kLong}));
      case c10::TypeKind::GeneratorType:
        return at::make_generator<at::CPUGeneratorImpl>(dice_.next());
      case c10::TypeKind::StorageType:
        return floats(mood_.shape).storage();
      case c10::TypeKind::LayoutType:
        return at::kStrided;
      case c10::TypeKind::MemoryFormatType:
        return at::MemoryFormat::Contiguous;
      case c10::TypeKind::DeviceObjType:
        return made_ > 0 ? IValue(at::Device(at::kCPU)) : IValue();
      default:
        throw std::runtime_error("no way to make up an argument of type " + type.str());
    }
  }

  at::TensorOptions place() {
    const bool real = kinds_.first_real && made_ == 0;
    ++made_;
    return real ? at::TensorOptions(at::kCPU) : at::TensorOptions();
  }

  Tensor floats(const Shape& shape) { return torch::rand(shape, place()).add_(.05).mul_(.9); }

  Tensor of(const Shape& shape, at::ScalarType type) {
    if (at::isIntegralType(type, /*includeBool=*/true)) {
      return torch::randint(type == at::kBool ? 2 : 3, shape, place()).to(type);
    }
    if (at::isComplexType(type)) return torch::rand(shape, place().dtype(type));
    return floats(shape).to(type);
  }

  Tensor tensor(const std::string& name) {
    auto made = chosen_tensor(name);
    if (kinds_.requires_grad && made.is_floating_point() && made.is_leaf()) made.requires_grad_();
    return made;
  }

  Tensor chosen_tensor(const std::string& name) {
    if (has(name, {"ind", "target", "length", "offset", "repeats", "ids"}) && dice_.chance(.8)) {
      const Shape shape = dice_.chance(.4) ? mood_.shape : dice_.one_of({Shape{2}, {3}, {2, 3}});
      return torch::randint(2, shape, place().dtype(at::kLong));
    }
    if (has(name, {"mask", "condition", "found_inf"}) && dice_.chance(.7)) {
      return of(mood_.shape, at::kBool);
    }
    if (has(name, {"bias", "running", "mean", "var", "rstd", "invstd", "scale", "zero_point"}) &&
        dice_.chance(.6)) {
      const auto dim = mood_.shape.size();
      const auto channels = dim == 0 ? 1 : dim == 1 ? mood_.shape[0] : mood_.shape[1];
      return of({channels}, dice_.chance(.9) ? at::kFloat : mood_.type);
    }
    if (dice_.chance(mood_.alike)) return of(mood_.shape, mood_.type);
    if (dice_.chance(.1)) return of_another_layout();
    const auto type = dice_.chance(.8) ? mood_.type : dice_.one_of({at::kLong, at::kFloat});
    return of(dice_.chance(.2) ? mood_.shape : dice_.one_of(shapes()), type);
  }

  Tensor of_another_layout() {
    const auto dense = of(mood_.shape, at::kFloat);
    switch (dice_.below(3)) {
      case 0:
        return dense.to_sparse();
      case 1:
        return at::quantize_per_tensor(dense, .1, 2, at::kQInt8);
      default:
        return dense.t().conj();
    }
  }

  std::int64_t integer(const std::string& name) {
    if (has(name, {"dtype"})) return static_cast<std::int64_t>(at::kFloat);
    if (has(name, {"groups", "step"})) return 1;
    if (has(name, {"dim", "axis"})) return dice_.one_of({0, 0, 1, -1});
    if (has(name, {"high", "num_weights", "num_classes", "minlength"})) return 5;
    if (has(name, {"size", "num", "chunks", "sections", "factor", "bins", "n", "k"})) {
      return dice_.between(1, 4);
    }
    return dice_.between(0, 2);
  }

  IValue list(const std::string& name, const c10::Type& element, int count) {
    switch (element.kind()) {
      case c10::TypeKind::TensorType: {
        c10::List<Tensor> tensors;
        for (int i = dice_.between(1, 3); i > 0; --i) tensors.push_back(tensor(name));
        return tensors;
      }
      case c10::TypeKind::OptionalType: {
        c10::List<std::optional<Tensor>> tensors;
        for (int i = dice_.between(1, 2); i > 0; --i) tensors.push_back(tensor(name));
        return tensors;
      }
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return integers(name, count);
      case c10::TypeKind::FloatType:
        return std::vector<double>(static_cast<std::size_t>(count > 0 ? count : 2), 2.);
      case c10::TypeKind::BoolType: {
        c10::List<bool> flags;
        for (int i = 0; i < std::max(count, 1); ++i) flags.push_back(dice_.chance(.7));
        return flags;
      }
      case c10::TypeKind::NumberType: {
        c10::impl::GenericList numbers(c10::NumberType::get());
        for (int i = dice_.between(1, 3); i > 0; --i) numbers.push_back(IValue(1.5));
        return numbers;
      }
      default:
        throw std::runtime_error("no way to make up a list of " + element.str());
    }
  }

  Shape integers(const std::string& name, int count) {
    const auto dims = static_cast<int>(mood_.shape.size());
    if (has(name, {"dim", "axes", "perm"})) {
      if (dice_.chance(.3)) {
        Shape all;
        for (int i = 0; i < dims; ++i) all.push_back(dims - 1 - i);
        return all;
      }
      return dice_.one_of({Shape{0}, {0, 1}, {-1}, {1}, {0, 2, 1}});
    }
    const auto length = count > 0 ? count : dice_.one_of({1, 2, 2, 3, dims});
    Shape values;
    const bool is_size = has(name, {"size", "shape"}) && !has(name, {"kernel"});
    if (is_size && dice_.chance(.6)) return mood_.shape;
    const int low = has(name, {"padding", "shift", "offset", "pad"}) ? 0 : 1;
    for (int i = 0; i < length; ++i) values.push_back(low + dice_.below(is_size ? 4 : 2));
    return values;
  }

  std::string text(const std::string& name) {
    static const std::map<std::string, std::vector<std::string>> kWords{
        {"reduce", {"sum", "mean", "amax", "prod"}},
        {"mode", {"constant", "reflect", "replicate", "bilinear", "nearest", "reduced"}},
        {"pad_mode", {"reflect", "constant"}},
        {"approximate", {"none", "tanh"}},
        {"rounding_mode", {"floor", "trunc"}},
        {"UPLO", {"L", "U"}},
        {"indexing", {"ij", "xy"}},
        {"equation", {"ij,jk->ik", "ij->ji", "ij,ij->i"}},
        {"interpolation", {"linear", "nearest"}},
        {"padding", {"same", "valid"}},
        {"norm", {"ortho", "forward"}},
        {"side", {"left", "right"}},
        {"ord", {"fro", "nuc"}}};
    const auto found = kWords.find(name);
    return found == kWords.end() ? "mean" : dice_.one_of(found->second);
  }

  const c10::OperatorHandle& op_;
  const ArgumentKinds& kinds_;
  Dice dice_;
  Mood mood_;
  int made_ = 0;  // tensors so far
};

}  // namespace

torch::jit::Stack made_up_arguments(const c10::OperatorHandle& op, std::uint64_t seed,
                                    const ArgumentKinds& kinds) {
  return Maker(op, seed, kinds).make();
}

}  // namespace smp::deferred
