// server/remote_call.h: the autograd node that stands in for a module of another rank (paper §4.1).
#pragma once

#include <cstdint>
#include <memory>

#include "server/execution.h"
#include "server/executor.h"

namespace smp::server {

class ModuleServer;

/// Backward of a remote execution: sends the gradients of its outputs to the owner and completes
/// with those of its inputs. Dropped without a backward, it tells the owner to forget the record.
class RemoteCall final : public AsyncNode {
 public:
  RemoteCall(ModuleServer& server, int owner, std::uint64_t record, const Execution& caller,
             const char* path);
  ~RemoteCall() override;

  void start(variable_list&& gradients, const BackwardOptions& options, Completion done) override;
  base::WaitReason wait_reason() const override { return {"backward", path_, owner_, microbatch_}; }
  std::string name() const override { return "SmpRemoteCall"; }
  void release_resources() override;

 private:
  void drop() noexcept;

  std::weak_ptr<ModuleServer> server_;  // a graph may outlive its session
  int owner_;
  std::uint64_t record_;
  std::int64_t step_;
  int microbatch_;
  const char* path_;
  bool used_ = false;
};

}  // namespace smp::server
