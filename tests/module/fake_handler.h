// tests/module/fake_handler.h: ranks without a server. Each has its own copy of a model; a call of
// a module that lives elsewhere is really encoded, run on the owner's copy, and decoded.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "module/call_handler.h"
#include "smp/detail/call.h"

namespace smp::test {

class FakeHandler final : public CallHandler {
 public:
  struct Request {
    std::string path;
    std::string signature;
    int owner;
  };

  /// `copies[r]` is rank r's copy of the model; `owners` maps paths to ranks, the rest is rank 0's.
  FakeHandler(std::vector<std::shared_ptr<torch::nn::Module>> copies,
              const std::map<std::string, int>& owners)
      : copies_(std::move(copies)) {
    for (auto& copy : copies_) place(*copy, owners);
    module::call_handler().set(this);
  }
  ~FakeHandler() override { module::call_handler().set(nullptr); }

  Where where(const RoutedBase& module) override {
    const auto& place = module.smp_place;
    if (!step_runs || !place.placed()) return Where::kPlain;
    return place.owner.value() == here_ ? Where::kHere : Where::kRemote;
  }
  bool in_step() const noexcept override { return step_runs; }
  bool joins(const RoutedBase& first, const RoutedBase& next) override {
    return first.smp_place.owner == next.smp_place.owner;
  }
  void enter(RoutedBase& module, Space& space) override {
    entered.push_back(module.smp_place.path);
    new (space.bytes) RoutedBase*(&module);
    running_.push_back(&module);
  }
  void leave(Space& space) noexcept override {
    balanced &= *reinterpret_cast<RoutedBase**>(space.bytes) == running_.back();
    running_.pop_back();
  }

  std::optional<Packet> call(RoutedBase& module, const CallEntry& entry, PpRank on,
                             Packet&& arguments, const CallTraits& traits) override {
    const int owner = on.value();
    calls_of_the_program += traits.calls;
    requests.push_back({module.smp_place.path, entry.signature, owner});
    if (answers_nothing) return std::nullopt;
    auto& twin = *modules_.at({owner, module.smp_place.path});
    const int caller = std::exchange(here_, owner);
    const CallEntry* known = find_call(entry.key);
    Packet answer = known->run(dynamic_cast<RoutedBase&>(twin), arguments);
    here_ = caller;
    return answer;
  }

  std::vector<Request> requests;
  std::vector<std::string> entered;
  bool balanced = true;
  bool step_runs = true;
  bool answers_nothing = false;
  std::uint32_t calls_of_the_program = 0;  // that requests stood for

 private:
  std::vector<RoutedBase*> running_;
  void place(torch::nn::Module& root, const std::map<std::string, int>& owners) {
    const int rank = ranks_++;
    for (auto& item : root.named_modules()) {
      modules_[{rank, item.key()}] = item.value().get();
      if (auto* routed = dynamic_cast<RoutedBase*>(item.value().get())) {
        const auto found = owners.find(item.key());
        routed->smp_place = {0, PpRank(found == owners.end() ? 0 : found->second), item.key()};
      }
    }
  }

  std::vector<std::shared_ptr<torch::nn::Module>> copies_;
  std::map<std::pair<int, std::string>, torch::nn::Module*> modules_;
  int ranks_ = 0;
  int here_ = 0;
};

}  // namespace smp::test
