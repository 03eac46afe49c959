// What LibTorch and the C++ runtime keep for a thread belongs to a fiber: nobody else sees what one
// sets, and it has it again after every switch.
#include "fiber/torch_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/random.h"
#include "fiber/scheduler.h"

namespace smp::fiber {
namespace {

/// Sets something while it lives.
class Setting {
 public:
  Setting(const std::function<void()>& set, std::function<void()> reset)
      : reset_(std::move(reset)) {
    set();
  }
  ~Setting() { reset_(); }

 private:
  std::function<void()> reset_;
};

class TorchStateTest : public testing::Test {
 protected:
  static constexpr WaitReason kForOthers{"the others", "", -1, -1};

  void spawn(std::function<void()> body) {
    ++running_;
    scheduler_.spawn(
        [this, body = std::move(body)] {
          body();
          if (--running_ == 0) ended_.signal();
        },
        {}, 1 << 20);
  }
  void finish() {
    while (running_ > 0) ended_.wait(kForOthers);
  }

  /// One fiber makes a Scope, in which `holds` is true; another runs while the first is suspended,
  /// and a third begins then.
  template <class Scope>
  void expect_own(const std::function<Scope()>& make, const std::function<bool()>& holds) {
    Event other_ran, third_ran;
    spawn([&] {
      const Scope scope = make();
      EXPECT_TRUE(holds());
      other_ran.wait(kForOthers);
      EXPECT_TRUE(holds()) << "it came back";
      third_ran.wait(kForOthers);
      EXPECT_TRUE(holds()) << "it came back again";
    });
    spawn([&] {
      EXPECT_FALSE(holds()) << "nobody else sees it";
      other_ran.signal();
      scheduler_.yield();
      EXPECT_FALSE(holds()) << "not after a switch either";
      spawn([&] {
        EXPECT_FALSE(holds()) << "a new fiber begins without it";
        third_ran.signal();
      });
    });
    scheduler_.yield();
    EXPECT_FALSE(holds());
    finish();
    EXPECT_FALSE(holds());
  }
  void expect_own(const std::function<void()>& set, const std::function<void()>& reset,
                  const std::function<bool()>& holds) {
    expect_own<std::unique_ptr<Setting>>([&] { return std::make_unique<Setting>(set, reset); },
                                         holds);
  }

  Scheduler& scheduler_ = Scheduler::install();

 private:
  int running_ = 0;
  Event ended_;
};

TEST_F(TorchStateTest, GradModeIsAFibersOwn) {
  expect_own([] { c10::GradMode::set_enabled(false); }, [] { c10::GradMode::set_enabled(true); },
             [] { return !c10::GradMode::is_enabled(); });
}

TEST_F(TorchStateTest, InferenceModeIsAFibersOwn) {
  using Guard = std::unique_ptr<c10::InferenceMode>;
  expect_own<Guard>([] { return std::make_unique<c10::InferenceMode>(); },
                    [] { return c10::InferenceMode::is_enabled(); });
}

TEST_F(TorchStateTest, AutocastIsAFibersOwnOnEveryDevice) {
  for (const auto device : {at::kCPU, at::kCUDA}) {
    expect_own([=] { at::autocast::set_autocast_enabled(device, true); },
               [=] { at::autocast::set_autocast_enabled(device, false); },
               [=] { return at::autocast::is_autocast_enabled(device); });
  }
}

TEST_F(TorchStateTest, AutocastsTypeIsAFibersOwnOnEveryDevice) {
  for (const auto device : {at::kCPU, at::kCUDA}) {
    const auto usual = at::autocast::get_autocast_dtype(device);
    expect_own([=] { at::autocast::set_autocast_dtype(device, at::kDouble); },
               [=] { at::autocast::set_autocast_dtype(device, usual); },
               [=] { return at::autocast::get_autocast_dtype(device) == at::kDouble; });
  }
}

TEST_F(TorchStateTest, WhetherAutocastCachesIsAFibersOwn) {
  expect_own([] { at::autocast::set_autocast_cache_enabled(false); },
             [] { at::autocast::set_autocast_cache_enabled(true); },
             [] { return !at::autocast::is_autocast_cache_enabled(); });
}

TEST_F(TorchStateTest, TheDefaultGeneratorIsAFibersOwn) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const auto usual = base::default_generator();
  expect_own([&] { base::default_generator() = generator; },
             [&] { base::default_generator() = usual; },
             [&] { return base::default_generator() == generator; });
}

TEST_F(TorchStateTest, DispatchKeysAreAFibersOwn) {
  const auto key = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
  expect_own([=] { c10::impl::tls_set_dispatch_key_included(key, true); },
             [=] { c10::impl::tls_set_dispatch_key_included(key, false); },
             [=] { return c10::impl::tls_is_dispatch_key_included(key); });
  expect_own([=] { c10::impl::tls_set_dispatch_key_excluded(key, true); },
             [=] { c10::impl::tls_set_dispatch_key_excluded(key, false); },
             [=] { return c10::impl::tls_is_dispatch_key_excluded(key); });
}

TEST_F(TorchStateTest, DebugInfoIsAFibersOwn) {
  const auto kind = c10::DebugInfoKind::TEST_INFO;
  using Guard = std::unique_ptr<c10::DebugInfoGuard>;
  expect_own<Guard>(
      [=] {
        return std::make_unique<c10::DebugInfoGuard>(kind, std::make_shared<c10::DebugInfoBase>());
      },
      [=] { return c10::ThreadLocalDebugInfo::get(kind) != nullptr; });
}

TEST_F(TorchStateTest, SavedTensorHooksAreAFibersOwn) {
  using Hooks = at::SavedTensorDefaultHooks;
  expect_own(
      [] {
        Hooks::lazy_initialize();
        Hooks::push_hooks({nullptr, nullptr}, {nullptr, nullptr});
      },
      [] { Hooks::pop_hooks(); }, [] { return Hooks::get_hooks().has_value(); });
  expect_own([] { Hooks::disable("not here"); }, [] { Hooks::enable(); },
             [] { return !Hooks::is_enabled(); });
  expect_own([] { Hooks::set_tracing(true); }, [] { Hooks::set_tracing(false); },
             [] { return Hooks::get_tls_state().is_tracing; });
}

TEST_F(TorchStateTest, ProfilerCallbacksAreAFibersOwn) {
  expect_own([] { at::enableRecordFunction(false); }, [] { at::enableRecordFunction(true); },
             [] { return !at::isRecordFunctionEnabled(); });
  at::CallbackHandle handle = 0;
  expect_own(
      [&] {
        handle = at::addThreadLocalCallback(at::RecordFunctionCallback(
            [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
              return nullptr;
            }));
      },
      [&] { at::removeCallback(handle); },
      [] { return !at::get_record_function_tls_().sorted_tls_callbacks_.empty(); });
}

TEST_F(TorchStateTest, SeveralSettingsOfSeveralFibersStayApart) {
  Event first, second;
  spawn([&] {
    const c10::AutoGradMode no_grad(false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    first.wait(kForOthers);
    EXPECT_FALSE(c10::GradMode::is_enabled());
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
  });
  spawn([&] {
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kDouble);
    second.wait(kForOthers);
    EXPECT_TRUE(c10::GradMode::is_enabled());
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kDouble);
  });
  scheduler_.yield();
  second.signal();
  scheduler_.yield();
  first.signal();
  finish();
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
}

// ---- exceptions --------------------------------------------------------------------------------

std::string text_of_current() {
  if (std::current_exception() == nullptr) return "none";
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST_F(TorchStateTest, AFiberMayBeSuspendedInsideACatchBlock) {
  Event first, second;
  const auto catch_and_wait = [](const char* text, Event& event) {
    try {
      throw std::runtime_error(text);
    } catch (...) {
      event.wait(kForOthers);
      EXPECT_EQ(text_of_current(), text);
    }
    EXPECT_EQ(text_of_current(), "none");
  };
  spawn([&] { catch_and_wait("first", first); });
  spawn([&] { catch_and_wait("second", second); });
  scheduler_.yield();
  EXPECT_EQ(text_of_current(), "none");
  first.signal();  // not in the order of a stack
  scheduler_.yield();
  second.signal();
  finish();
  EXPECT_EQ(text_of_current(), "none");
}

TEST_F(TorchStateTest, AFiberMayBeSuspendedWhileItUnwinds) {
  Event event;
  spawn([&] {
    const auto wait = [&] {
      EXPECT_EQ(std::uncaught_exceptions(), 1);
      event.wait(kForOthers);
      EXPECT_EQ(std::uncaught_exceptions(), 1);
    };
    try {
      const Setting at_its_end([] {}, wait);
      throw std::runtime_error("unwinds");
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "unwinds");
    }
    EXPECT_EQ(std::uncaught_exceptions(), 0);
  });
  spawn([&] {
    EXPECT_EQ(std::uncaught_exceptions(), 0);
    event.signal();
  });
  scheduler_.yield();
  EXPECT_EQ(std::uncaught_exceptions(), 0);
  finish();
}

}  // namespace
}  // namespace smp::fiber
