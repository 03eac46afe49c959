// smp/nn/sequential.h: modules called one after another, like torch::nn::Sequential (paper §4.1).
// Neighbours that live together on another rank get one request for all of them.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/ordered_dict.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "smp/nn/any.h"

namespace smp::nn {

/// Like torch::nn::SequentialImpl; each module keeps its own path and owner. Sequentials may be
/// nested. Every module needs one forward, with default arguments if it likes.
class SMP_API SequentialImpl : public torch::nn::Cloneable<SequentialImpl>, public RoutedBase {
 public:
  using Iterator = std::vector<AnyModule>::iterator;
  using ConstIterator = std::vector<AnyModule>::const_iterator;

  SequentialImpl() = default;
  template <class... Modules>
  explicit SequentialImpl(Modules&&... modules) {
    (push_back(std::forward<Modules>(modules)), ...);
  }
  explicit SequentialImpl(torch::OrderedDict<std::string, AnyModule>&& modules);
  explicit SequentialImpl(std::initializer_list<NamedAnyModule> modules);

  void reset() override {}
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

  torch::nn::Module& smp_module() noexcept override { return *this; }
  void* smp_as(const std::type_info& impl) noexcept override {
    return impl == typeid(SequentialImpl) ? this : nullptr;
  }
  std::string smp_type_name() const override { return "smp::nn::SequentialImpl"; }
  std::string smp_cannot_cross() const override;
  bool smp_draws_random() const noexcept override;

  /// Feeds `inputs` to the first module, its result to the second, and so on. The types must match
  /// the parameters exactly; the last result must be an R.
  template <class R = torch::Tensor, class... Inputs>
  R forward(Inputs&&... inputs) {
    detail::Values values;
    values.reserve(sizeof...(Inputs));
    (values.emplace_back(AnyValue(std::forward<Inputs>(inputs))), ...);
    auto result = any_forward(std::move(values));
    if (auto* value = result.template try_get<R>()) return std::move(*value);
    detail::fail_result_type(typeid(R), result.type_info());
  }
  AnyValue any_forward(std::vector<AnyValue>&& inputs);

  /// Adds a holder, a shared_ptr to a module, a module or an AnyModule, named by its position.
  template <class Module>
  void push_back(Module&& module) {
    push_back(std::to_string(modules_.size()), std::forward<Module>(module));
  }
  template <class Module>
  void push_back(std::string name, Module&& module) {
    add(std::move(name), AnyModule(std::forward<Module>(module)));
  }
  template <class Container>
  void extend(const Container& container) {
    for (const auto& module : container) push_back(module);
  }

  Iterator begin() { return modules_.begin(); }
  ConstIterator begin() const { return modules_.begin(); }
  Iterator end() { return modules_.end(); }
  ConstIterator end() const { return modules_.end(); }

  template <class T>
  T& at(std::size_t index) const {
    return module_at(index).template get<T>();
  }
  std::shared_ptr<torch::nn::Module> ptr(std::size_t index) const { return module_at(index).ptr(); }
  template <class T>
  std::shared_ptr<T> ptr(std::size_t index) const {
    return module_at(index).template ptr<T>();
  }
  std::shared_ptr<torch::nn::Module> operator[](std::size_t index) const { return ptr(index); }

  std::size_t size() const noexcept { return modules_.size(); }
  bool is_empty() const noexcept { return modules_.empty(); }

  /// The calls at its two ends, by whose types an outer Sequential packs arguments and results.
  const detail::AnyCall& front_call() const { return module_at(0).call(); }
  const detail::AnyCall& back_call() const { return module_at(size() - 1).call(); }

 private:
  void add(std::string name, AnyModule module);
  const AnyModule& module_at(std::size_t index) const;
  AnyValue run_here(std::size_t first, std::size_t last, detail::Values&& values);
  AnyValue run_wrapped(detail::Values&& values);
  Packet pack(std::size_t first, std::size_t last, detail::Values& values);
  AnyValue unpack(Packet& answer, std::size_t back);
  /// Runs the modules [first, last) in one request to `owner`: all of them as one call of this
  /// module, or a few as so many calls.
  AnyValue request(CallHandler& handler, const CallEntry& entry, PpRank owner, std::size_t first,
                   std::size_t last, detail::Values&& values);
  const RoutedBase* sendable(std::size_t index) const;
  static const CallEntry& forward_entry();
  static const CallEntry& joint_entry();
  static Packet run(RoutedBase& module, Packet& arguments);
  static Packet run_forward(RoutedBase& module, Packet& arguments);
  static const bool registered_;  // at load time, on every rank

  std::vector<AnyModule> modules_;
};

/// Holder of a SequentialImpl.
class Sequential : public torch::nn::ModuleHolder<SequentialImpl> {
 public:
  using Impl [[maybe_unused]] = SequentialImpl;
  using torch::nn::ModuleHolder<SequentialImpl>::ModuleHolder;

  Sequential() = default;
  Sequential(std::initializer_list<NamedAnyModule> modules)
      : ModuleHolder(std::make_shared<SequentialImpl>(modules)) {}

  /// Calls forward, which must end in a tensor.
  template <class... Inputs>
  torch::Tensor operator()(Inputs&&... inputs) {
    return get()->forward(std::forward<Inputs>(inputs)...);
  }
};

}  // namespace smp::nn
