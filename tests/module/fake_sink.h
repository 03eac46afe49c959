// tests/module/fake_sink.h: ranks without a server. Each has its own copy of a model; a call of a
// module that lives elsewhere is really encoded, run on the owner's copy, and decoded.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fiber.h"
#include "module/rank_sink.h"
#include "smp/call.h"

namespace smp::test {

class FakeSink final : public module::RankSink {
 public:
  struct Request {
    std::string path;
    std::string signature;
    int owner;
  };

  /// `copies[r]` is rank r's copy of the model; `owners` maps paths to ranks, the rest is rank 0's.
  FakeSink(std::vector<std::shared_ptr<torch::nn::Module>> copies,
           const std::map<std::string, int>& owners)
      : copies_(std::move(copies)) {
    for (auto& copy : copies_) place(*copy, owners);
    base::FiberScheduler::install();
    base::current_fiber()->rank = this;
  }
  ~FakeSink() override { base::current_fiber()->rank = nullptr; }

  void on_switch(void*, bool) noexcept override {}
  void describe(const void*, char* text, std::size_t size) const noexcept override {
    if (size > 0) *text = '\0';
  }

  Where where(const RoutedBase&, int owner) override {
    if (!step_runs || owner < 0) return Where::kPlain;
    return owner == here_ ? Where::kHere : Where::kRemote;
  }
  void* enter(RoutedBase& module) override {
    entered.push_back(module.smp_place.path);
    return &module;
  }
  void leave(RoutedBase& module, void* token) noexcept override { balanced &= token == &module; }

  std::optional<Packet> call(RoutedBase& module, const CallEntry& entry, int owner,
                             Packet&& arguments) override {
    requests.push_back({module.smp_place.path, entry.signature, owner});
    if (answers_nothing) return std::nullopt;
    auto& twin = *modules_.at({owner, module.smp_place.path});
    const int caller = std::exchange(here_, owner);
    const CallEntry* known = find_call(entry.key);
    Packet answer = known->run(twin, arguments);
    here_ = caller;
    return answer;
  }

  std::vector<Request> requests;
  std::vector<std::string> entered;
  bool balanced = true;
  bool step_runs = true;
  bool answers_nothing = false;

 private:
  void place(torch::nn::Module& root, const std::map<std::string, int>& owners) {
    const int rank = ranks_++;
    for (auto& item : root.named_modules()) {
      modules_[{rank, item.key()}] = item.value().get();
      if (auto* routed = dynamic_cast<RoutedBase*>(item.value().get())) {
        const auto found = owners.find(item.key());
        routed->smp_place = {0, found == owners.end() ? 0 : found->second, item.key()};
      }
    }
  }

  std::vector<std::shared_ptr<torch::nn::Module>> copies_;
  std::map<std::pair<int, std::string>, torch::nn::Module*> modules_;
  int ranks_ = 0;
  int here_ = 0;
};

}  // namespace smp::test
