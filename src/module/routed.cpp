// module/routed.cpp: the parts of smp/detail/routed.h that need no template: names and refusals.
#include "smp/detail/routed.h"

#include <c10/util/Type.h>
#include <torch/nn/cloneable.h>

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "module/call_handler.h"
#include "module/whole_tensors.h"

namespace smp::detail {
namespace {

struct NameAccess;

std::uint64_t fnv1a(const char* text) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (; *text != '\0'; ++text)
    hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3ull;
  return hash;
}

/// True if no tensor of `module` is on the meta device, where those whose initialisation is delayed
/// are.
bool has_values(const torch::nn::Module& module) {
  const auto is_meta = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_meta();
  };
  const auto parameters = module.parameters();
  const auto buffers = module.buffers();
  return std::none_of(parameters.begin(), parameters.end(), is_meta) &&
         std::none_of(buffers.begin(), buffers.end(), is_meta);
}

std::string name_of(const RoutedBase& module) {
  const auto& path = module.smp_place.path;
  return base::concat("module '", path.empty() ? "<root>" : path, "' (", module.smp_type_name(),
                      ")");
}

module::HasParts has_parts = nullptr;

/// True of a tensor of another rank, whose memory was given back.
bool is_elsewhere(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.has_storage();
}

bool is_part(const torch::nn::Module& module) {
  const auto* routed = dynamic_cast<const RoutedBase*>(&module);
  return (routed != nullptr && routed->smp_stand_in != nullptr) ||
         (has_parts != nullptr && has_parts(module));
}

/// True if every parameter and buffer of `module` and of those below it is here as a whole.
bool has_whole_tensors(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  const auto buffers = module.buffers();
  const auto below = module.modules(/*include_self=*/false);
  return std::none_of(parameters.begin(), parameters.end(), is_elsewhere) &&
         std::none_of(buffers.begin(), buffers.end(), is_elsewhere) && !is_part(module) &&
         std::none_of(below.begin(), below.end(),
                      [](const auto& child) { return is_part(*child); });
}

/// What a step computes with must not become another tensor meanwhile.
void refuse_change_in_step(const RoutedBase& module, std::string_view action) {
  const auto* handler = module::call_handler().get();
  const bool changes = action == "to()" || action == "load()";
  SMP_REQUIRE(!changes || handler == nullptr || !handler->in_step(), action, " of ",
              name_of(module), " was called inside a step; call it between steps, on every rank");
}

}  // namespace
}  // namespace smp::detail

/// torch::nn::Module befriends every Cloneable<T>; this one may set the name that name() shows, and
/// the mode of a module without those below it.
template <>
class torch::nn::Cloneable<smp::detail::NameAccess> {
 public:
  static std::optional<std::string>& name(Module& module) { return module.name_; }
  static void set_training(Module& module, bool on) { module.is_training_ = on; }
};

namespace smp::detail {

bool name_after(torch::nn::Module& module, const std::type_info& impl) {
  auto& name = torch::nn::Cloneable<NameAccess>::name(module);
  if (!name) name = type_name(impl);
  return true;
}

/// A stand-in is no part of the model: train() and what travels with a call reach the module that
/// it stands in for, and its children if they are in the model.
Packet run_stand_in(RoutedBase& module, const CallEntry& entry, Packet& arguments) {
  const bool training = module.smp_module().is_training();
  auto& own = module.smp_stand_in->module();
  if (module.smp_stand_in->in_tree) {
    torch::nn::Cloneable<NameAccess>::set_training(own, training);
  } else if (own.is_training() != training) {
    own.train(training);
  }
  return module.smp_stand_in->run(entry, arguments);
}

std::size_t module_data_size() noexcept {
  struct Probe : torch::nn::Module {
    char first = 0;
  };
  static const auto size = [] {
    const Probe probe;
    const torch::nn::Module& base = probe;
    return static_cast<std::size_t>(&probe.first - reinterpret_cast<const char*>(&base));
  }();
  return size;
}

std::string type_name(const std::type_info& type) { return c10::demangle(type.name()); }

std::uint64_t call_key(const std::type_info& call) { return fnv1a(call.name()); }

std::string signature_text(const std::type_info& function, const std::type_info& impl,
                           const char* method, bool is_const) {
  auto text = type_name(function);
  const std::string hole = "(*)";
  if (const auto at = text.find(hole); at != std::string::npos) {
    text.replace(at, hole.size(), type_name(impl) + "::" + method);
  }
  return is_const ? text + " const" : text;
}

std::string obstacle_text(const char* method, int argument, const std::type_info& type,
                          bool is_reference) {
  const auto what = argument == 0 ? std::string("the result") : base::concat("argument ", argument);
  return base::concat(what, " of ", method, ", ", type_name(type), is_reference ? "&" : "",
                      ", cannot be sent to another rank");
}

void refuse_remote_call(const RoutedBase& module, const CallEntry& entry,
                        const std::string& obstacle) {
  throw UnsupportedError(base::concat(
      "smp: ", name_of(module), " lives on pp_rank ", module.smp_place.owner, ", but '",
      entry.signature, "' cannot be called from another rank: ", obstacle,
      ". Specialise smp::Codec for the type, pass it another way, or pin the module to the rank "
      "that calls it."));
}

void fail_wrong_module(const RoutedBase& module, const CallEntry& entry) {
  SMP_ASSERT(false, "'", entry.signature, "' was asked of ", name_of(module));
}

void copy_pins(const torch::nn::Module& original, torch::nn::Module& copy) {
  if (const auto* from = dynamic_cast<const RoutedBase*>(&original)) {
    if (auto* to = dynamic_cast<RoutedBase*>(&copy)) {
      to->smp_pin = from->smp_pin;
      to->smp_tensor_parallel = from->smp_tensor_parallel;
      to->smp_wrapper = from->smp_wrapper;
    }
  }
  const auto children = original.children();
  const auto copies = copy.children();
  for (std::size_t i = 0; i < children.size() && i < copies.size(); ++i) {
    copy_pins(*children[i], *copies[i]);
  }
}

void refuse_after_placement(const RoutedBase& module, const char* action) {
  const auto* own = dynamic_cast<const torch::nn::Module*>(&module);
  if (module.smp_place.placed() && own != nullptr) {
    SMP_REQUIRE_AS(UnsupportedError, has_whole_tensors(*own), action, " of ", name_of(module),
                   " after the model was placed: this rank no longer holds all of its parameters. "
                   "smp::save_safetensors(model, path) and smp::load_safetensors, on every rank, "
                   "write and read all of them; do other things before the first step, or with the "
                   "parameters that this rank owns");
    refuse_change_in_step(module, action);
  }
  // A cast can be put off, the others cannot.
  if (std::string_view(action) == "to()") return;
  SMP_REQUIRE(own == nullptr || has_values(*own), action, " of ", name_of(module),
              " needs the values of a tensor that has none yet: it was built under "
              "smp::delay_param_initialization and gets them when its smp::DistributedModel is "
              "placed, at the first step or by place(). To use it before, build it outside of that "
              "scope");
}

void refuse_zero_grad_in_body(const RoutedBase& module) {
  const auto* handler = module::call_handler().get();
  SMP_REQUIRE(handler == nullptr || !handler->in_step(), "zero_grad() of ", name_of(module),
              " was called inside a step, where other microbatches have added to the gradients "
              "already; call it before the step, on every rank");
}

}  // namespace smp::detail

namespace smp::module {

void set_has_parts(HasParts answer) noexcept { smp::detail::has_parts = answer; }

}  // namespace smp::module
