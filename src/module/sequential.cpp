// module/sequential.cpp: smp::nn::Sequential, and one request for neighbours on another rank.
#include "smp/nn/sequential.h"

#include <ostream>

#include "base/check.h"

namespace smp::nn {
namespace {

using smp::detail::refuse_after_placement;

const RoutedBase* routed(const AnyModule& module) {
  return dynamic_cast<const RoutedBase*>(module.ptr().get());
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
  const int owner = smp_place.owner;
  CallSink* sink = current_call_sink(*this);
  const auto where = sink == nullptr ? CallSink::Where::kPlain : sink->where(*this, owner);
  if (where == CallSink::Where::kRemote) {
    return request(*sink, owner, 0, size(), std::move(inputs));
  }
  if (where == CallSink::Where::kPlain) return run_here(0, size(), std::move(inputs));
  LocalCall bracket(*sink, *this);
  return run_here(0, size(), std::move(inputs));
}

AnyValue SequentialImpl::run_here(std::size_t first, std::size_t last, detail::Values&& values) {
  CallSink* sink = current_call_sink(*this);
  while (first < last) {
    const auto end = end_of_run(sink, first, last);
    auto result = end == first + 1 ? modules_[first].call().forward(std::move(values))
                                   : request(*sink, routed(modules_[first])->smp_place.owner, first,
                                             end, std::move(values));
    values.clear();
    values.push_back(std::move(result));
    first = end;
  }
  return std::move(values.front());
}

std::size_t SequentialImpl::end_of_run(CallSink* sink, std::size_t first, std::size_t last) const {
  const auto* head = routed(modules_[first]);
  if (sink == nullptr || head == nullptr || !modules_[first].call().packable()) return first + 1;
  const int owner = head->smp_place.owner;
  if (sink->where(*head, owner) != CallSink::Where::kRemote) return first + 1;
  auto end = first + 1;
  while (end < last) {
    const auto* next = routed(modules_[end]);
    if (next == nullptr || next->smp_place.owner != owner || !modules_[end].call().packable()) {
      break;
    }
    ++end;
  }
  return end;
}

AnyValue SequentialImpl::request(CallSink& sink, int owner, std::size_t first, std::size_t last,
                                 detail::Values&& values) {
  Writer out;
  out.put<std::uint64_t>(first);
  out.put<std::uint64_t>(last);
  modules_[first].call().put_arguments(out, values);
  values.clear();
  auto answer = sink.call(*this, run_entry(), owner, std::move(out).take());
  const auto& back = modules_[last - 1].call();
  if (!answer) return back.empty_result();
  Reader in(*answer);
  auto result = back.get_result(in);
  in.finish();
  return result;
}

const CallEntry* const SequentialImpl::registered_ = &run_entry();

const CallEntry& SequentialImpl::run_entry() {
  static const CallEntry& entry =
      register_call({smp::detail::call_key(typeid(SequentialImpl)),
                     "AnyValue smp::nn::SequentialImpl::run(first, last, AnyValue...)",
                     &SequentialImpl::run, &typeid(SequentialImpl)});
  return entry;
}

Packet SequentialImpl::run(torch::nn::Module& module, Packet& arguments) {
  auto* self = dynamic_cast<SequentialImpl*>(&module);
  if (self == nullptr) smp::detail::fail_wrong_module(module, run_entry());
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
