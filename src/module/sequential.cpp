// module/sequential.cpp: smp::nn::Sequential, and one request for neighbours on another rank.
#include "smp/nn/sequential.h"

#include <algorithm>
#include <ostream>

#include "base/check.h"
#include "module/grouped_calls.h"
#include "smp/detail/routed_call.h"

namespace smp::nn {
namespace {

using smp::detail::refuse_after_placement;

const RoutedBase* routed(const AnyModule& module) {
  return dynamic_cast<const RoutedBase*>(module.ptr().get());
}

/// True if a call of `module` runs on this rank.
bool is_here(CallHandler* handler, const AnyModule& module) {
  const auto* const callee = handler == nullptr ? nullptr : routed(module);
  return callee == nullptr || handler->where(*callee) != CallHandler::Where::kRemote;
}

}  // namespace

SequentialImpl::SequentialImpl(torch::OrderedDict<std::string, AnyModule>&& modules) {
  for (auto& item : modules) push_back(item.key(), std::move(item.value()));
}

SequentialImpl::SequentialImpl(std::initializer_list<NamedAnyModule> modules) {
  for (const auto& item : modules) push_back(item.name(), item.module());
}

void SequentialImpl::add(std::string name, AnyModule module) {
  register_module(std::move(name), module.ptr());
  modules_.push_back(std::move(module));
}

const AnyModule& SequentialImpl::module_at(std::size_t index) const {
  SMP_REQUIRE(index < modules_.size(), "smp: module ", index, " of a Sequential of ",
              modules_.size(), " was asked for");
  return modules_[index];
}

void SequentialImpl::pretty_print(std::ostream& stream) const { stream << "smp::nn::Sequential"; }

std::shared_ptr<torch::nn::Module> SequentialImpl::clone(
    const std::optional<torch::Device>& device) const {
  refuse_after_placement(*this, "clone()");
  auto copy = std::make_shared<SequentialImpl>();
  for (const auto& child : named_children()) {
    const auto& module = modules_[copy->size()];
    copy->add(child.key(), module.clone(device));
  }
  copy->train(is_training());
  smp::detail::copy_pins(*this, *copy);
  return copy;
}

void SequentialImpl::save(torch::serialize::OutputArchive& archive) const {
  refuse_after_placement(*this, "save()");
  Module::save(archive);
}

void SequentialImpl::load(torch::serialize::InputArchive& archive) {
  refuse_after_placement(*this, "load()");
  Module::load(archive);
}

void SequentialImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  refuse_after_placement(*this, "to()");
  Module::to(device, dtype, non_blocking);
}

void SequentialImpl::to(torch::Dtype dtype, bool non_blocking) {
  refuse_after_placement(*this, "to()");
  Module::to(dtype, non_blocking);
}

void SequentialImpl::to(torch::Device device, bool non_blocking) {
  refuse_after_placement(*this, "to()");
  Module::to(device, non_blocking);
}

std::string SequentialImpl::smp_cannot_cross() const {
  if (is_empty()) return "it is empty";
  if (!front_call().packable()) return "the arguments of its first module cannot be sent";
  if (!back_call().packable()) return "the result of its last module cannot be sent";
  return {};
}

bool SequentialImpl::smp_draws_random() const noexcept {
  for (const auto& module : modules_) {
    if (routed(module) == nullptr) return true;
  }
  return false;
}

AnyValue SequentialImpl::any_forward(std::vector<AnyValue>&& inputs) {
  SMP_REQUIRE(!is_empty(), "smp: forward() of an empty Sequential was called");
  return route(
      *this,
      [&] {
        if (smp::detail::is_wrapped(*this)) [[unlikely]]
          return run_wrapped(std::move(inputs));
        return run_here(0, size(), std::move(inputs));
      },
      [&](CallHandler& handler) {
        return request(handler, forward_entry(), smp_place.owner, 0, size(), std::move(inputs));
      });
}

/// As a request to another rank, which runs here.
AnyValue SequentialImpl::run_wrapped(detail::Values&& values) {
  auto packed = pack(0, size(), values);
  auto answer = run_forward(*this, packed);
  return unpack(answer, size() - 1);
}

AnyValue SequentialImpl::run_here(std::size_t first, std::size_t last, detail::Values&& values) {
  CallHandler* const handler = current_call_handler(*this);
  auto* groups = dynamic_cast<smp::module::GroupedCalls*>(smp_wrapper.get());
  if (groups != nullptr && !groups->groups()) groups = nullptr;
  const auto joint_at = [&](std::size_t begin) {
    return joint_calls(
        handler, [&](std::size_t i) { return begin + i < last ? sendable(begin + i) : nullptr; });
  };
  // How many modules from `begin` on run here as a group; their ends must be packable.
  const auto group_at = [&](std::size_t begin) {
    std::size_t size = 0;
    const auto most = groups->size() == 0 ? last - begin : std::min(groups->size(), last - begin);
    while (size < most && is_here(handler, modules_[begin + size])) ++size;
    if (!modules_[begin].call().packable()) return std::size_t{0};
    while (size > 0 && !modules_[begin + size - 1].call().packable()) --size;
    return size;
  };
  while (first < last) {
    const auto joint = joint_at(first);
    const auto group = joint == 0 && groups != nullptr ? group_at(first) : 0;
    AnyValue result = [&] {
      if (joint > 0) {
        return request(*handler, joint_entry(), sendable(first)->smp_place.owner, first,
                       first + joint, std::move(values));
      }
      if (group == 0) return modules_[first].call().forward(std::move(values));
      auto packed = pack(first, first + group, values);
      auto answer = groups->run_group(*this, first, first + group, packed, &run);
      return unpack(answer, first + group - 1);
    }();
    values.clear();
    values.push_back(std::move(result));
    first += std::max<std::size_t>({joint, group, 1});
  }
  return std::move(values.front());
}

/// The module at `index` if it is routed and its types can be sent.
const RoutedBase* SequentialImpl::sendable(std::size_t index) const {
  return modules_[index].call().packable() ? routed(modules_[index]) : nullptr;
}

AnyValue SequentialImpl::request(CallHandler& handler, const CallEntry& entry, PpRank owner,
                                 std::size_t first, std::size_t last, detail::Values&& values) {
  auto packed = pack(first, last, values);
  const auto calls = entry.joint ? static_cast<std::uint32_t>(last - first) : 1;
  const auto& back = modules_[last - 1].call();
  auto answer =
      handler.call(*this, entry, owner, std::move(packed), {calls, back.gives_only_tensors()});
  return answer ? unpack(*answer, last - 1) : back.empty_result();
}

Packet SequentialImpl::pack(std::size_t first, std::size_t last, detail::Values& values) {
  Writer out;
  out.put<std::uint64_t>(first);
  out.put<std::uint64_t>(last);
  modules_[first].call().put_arguments(out, values);
  values.clear();
  return std::move(out).take();
}

AnyValue SequentialImpl::unpack(Packet& answer, std::size_t back) {
  Reader in(answer);
  auto result = modules_[back].call().get_result(in);
  in.finish();
  return result;
}

const bool SequentialImpl::registered_ =
    forward_entry().key != 0 && joint_entry().key != 0;  // which registers both

const CallEntry& SequentialImpl::forward_entry() {
  static const CallEntry& entry =
      register_call({smp::detail::call_key(typeid(SequentialImpl)),
                     "AnyValue smp::nn::SequentialImpl::forward(AnyValue...)",
                     &SequentialImpl::run_forward, &typeid(SequentialImpl)});
  return entry;
}

const CallEntry& SequentialImpl::joint_entry() {
  static const CallEntry& entry =
      register_call({smp::detail::call_key(typeid(SequentialImpl)) + 1,
                     "AnyValue smp::nn::SequentialImpl::run(first, last, AnyValue...)",
                     &SequentialImpl::run, &typeid(SequentialImpl), /*joint=*/true});
  return entry;
}

Packet SequentialImpl::run_forward(RoutedBase& module, Packet& arguments) {
  if (!smp::detail::is_wrapped(module)) return run(module, arguments);
  return module.smp_wrapper->run(module, forward_entry(), arguments, &run);
}

Packet SequentialImpl::run(RoutedBase& module, Packet& arguments) {
  auto* self = static_cast<SequentialImpl*>(module.smp_as(typeid(SequentialImpl)));
  if (self == nullptr) smp::detail::fail_wrong_module(module, forward_entry());
  Reader in(arguments);
  const auto first = static_cast<std::size_t>(in.get<std::uint64_t>());
  const auto last = static_cast<std::size_t>(in.get<std::uint64_t>());
  if (first >= last || last > self->size()) in.fail("a Sequential has no such modules");
  auto values = self->modules_[first].call().get_arguments(in);
  in.finish();
  auto result = self->run_here(first, last, std::move(values));
  Writer out;
  self->modules_[last - 1].call().put_result(out, result);
  return std::move(out).take();
}

}  // namespace smp::nn
