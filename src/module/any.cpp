// module/any.cpp: the parts of smp/nn/any.h that need no template.
#include "smp/nn/any.h"

#include "base/check.h"
#include "smp/nn/sequential.h"

namespace smp::nn {
namespace detail {
namespace {

using smp::detail::type_name;

/// A Sequential inside a container: its types are those of its ends.
class SequentialCall final : public AnyCall {
 public:
  explicit SequentialCall(std::shared_ptr<SequentialImpl> module) : module_(std::move(module)) {}

  std::shared_ptr<torch::nn::Module> module() const override { return module_; }
  const std::type_info& type() const noexcept override { return typeid(SequentialImpl); }
  std::shared_ptr<AnyCall> clone(std::optional<torch::Device> device) const override {
    return make_call(std::dynamic_pointer_cast<SequentialImpl>(module_->clone(device)));
  }
  AnyValue forward(Values&& arguments) override {
    return module_->any_forward(std::move(arguments));
  }
  bool packable() const override { return module_->smp_cannot_cross().empty(); }
  void put_arguments(Writer& out, Values& arguments) const override {
    module_->front_call().put_arguments(out, arguments);
  }
  Values get_arguments(Reader& in) const override {
    return module_->front_call().get_arguments(in);
  }
  void put_result(Writer& out, AnyValue& result) const override {
    module_->back_call().put_result(out, result);
  }
  AnyValue get_result(Reader& in) const override { return module_->back_call().get_result(in); }
  AnyValue empty_result() const override { return module_->back_call().empty_result(); }
  bool gives_only_tensors() const noexcept override {
    return packable() && module_->back_call().gives_only_tensors();
  }

 private:
  std::shared_ptr<SequentialImpl> module_;
};

/// A torch::nn::AnyModule hides its types, so it cannot be packed.
class ForeignCall final : public AnyCall {
 public:
  explicit ForeignCall(torch::nn::AnyModule module) : module_(std::move(module)) {}

  std::shared_ptr<torch::nn::Module> module() const override { return module_.ptr(); }
  const std::type_info& type() const noexcept override { return module_.type_info(); }
  std::shared_ptr<AnyCall> clone(std::optional<torch::Device> device) const override {
    return make_call(module_.clone(device));
  }
  AnyValue forward(Values&& a) override {
    switch (a.size()) {
      case 1:
        return module_.any_forward(std::move(a[0]));
      case 2:
        return module_.any_forward(std::move(a[0]), std::move(a[1]));
      case 3:
        return module_.any_forward(std::move(a[0]), std::move(a[1]), std::move(a[2]));
      case 4:
        return module_.any_forward(std::move(a[0]), std::move(a[1]), std::move(a[2]),
                                   std::move(a[3]));
      default:
        fail_argument_count(*module_.ptr(), 4, a.size());
    }
  }
  bool packable() const override { return false; }
  void put_arguments(Writer&, Values&) const override { fail_not_packable(*module_.ptr()); }
  Values get_arguments(Reader&) const override { fail_not_packable(*module_.ptr()); }
  void put_result(Writer&, AnyValue&) const override { fail_not_packable(*module_.ptr()); }
  AnyValue get_result(Reader&) const override { fail_not_packable(*module_.ptr()); }
  AnyValue empty_result() const override { fail_not_packable(*module_.ptr()); }
  bool gives_only_tensors() const noexcept override { return false; }

 private:
  torch::nn::AnyModule module_;
};

}  // namespace

AnyCall::~AnyCall() = default;

void fail_argument_type(std::size_t position, const std::type_info& wanted,
                        const std::type_info& given) {
  throw UsageError(base::concat("smp: argument ", position + 1, " of forward is a ",
                                type_name(wanted), ", but a ", type_name(given),
                                " was given. A Sequential passes exactly the type it received."));
}

void fail_argument_count(const torch::nn::Module& module, std::size_t most, std::size_t given) {
  throw UsageError(base::concat("smp: forward of ", module.name(), " cannot be called with ", given,
                                " argument(s); it takes at most ", most));
}

void fail_result_type(const std::type_info& asked, const std::type_info& given) {
  throw UsageError(base::concat("smp: a ", type_name(asked), " was asked for, but there is a ",
                                type_name(given)));
}

void fail_not_packable(const torch::nn::Module& module) {
  throw UnsupportedError(base::concat("smp: arguments or result of ", module.name(),
                                      " cannot be sent to another rank"));
}

std::shared_ptr<AnyCall> make_call(std::shared_ptr<SequentialImpl> module) {
  return std::make_shared<SequentialCall>(std::move(module));
}

std::shared_ptr<AnyCall> make_call(torch::nn::AnyModule module) {
  return std::make_shared<ForeignCall>(std::move(module));
}

}  // namespace detail

detail::AnyCall& AnyModule::call() const {
  SMP_REQUIRE(call_ != nullptr, "smp: an empty AnyModule was used");
  return *call_;
}

AnyModule AnyModule::clone(std::optional<torch::Device> device) const {
  AnyModule copy;
  if (call_ != nullptr) copy.call_ = call_->clone(device);
  return copy;
}

std::shared_ptr<torch::nn::Module> AnyModule::ptr() const { return call().module(); }

const std::type_info& AnyModule::type_info() const { return call().type(); }

}  // namespace smp::nn
