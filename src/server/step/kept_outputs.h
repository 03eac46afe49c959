// server/step/kept_outputs.h: outputs of requests that their caller may pass on to other requests
// (docs/design.md, Promised outputs). Threads: the rank's; everything is safe in a poll.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <vector>

#include "server/protocol/message.h"

namespace smp::server {

/// A tensor that can be sent, and the note that makes of it what it was (tensor_forms.h).
struct KeptOutput {
  std::vector<at::Tensor> tensors;
  Note forms;
};

class KeptOutputs {
 public:
  using Send = std::function<void(PpRank to, PassedOn&& message)>;
  explicit KeptOutputs(Send send) : send_(std::move(send)) {}

  /// Announces a request whose outputs will be kept. Those in `ahead` are sent as soon as they are
  /// there.
  void expect(const RequestName& name, const std::vector<SendAhead>& ahead = {});
  /// Keeps the outputs of the request, and sends them to whoever has asked for them meanwhile.
  /// @param unusual  PassedOn::unusual
  void keep(const RequestName& name, std::vector<KeptOutput>&& outputs, bool unusual);
  /// Notes that the request threw, and tells whoever has asked for its outputs.
  void fail(const RequestName& name);
  /// Sends one output, now or when it is there. May be called before expect(), because a request
  /// with large tensors may be overtaken; so may release().
  void pass_on(PpRank caller, const PassOn& message);
  /// Frees the outputs, for which nobody will ask any more; whoever has asked still gets them.
  void release(const RequestName& name);

  std::size_t size() const noexcept { return entries_.size(); }
  void clear() noexcept { entries_.clear(); }

 private:
  struct Entry {
    bool ended = false, failed = false, released = false, unusual = false;
    std::vector<KeptOutput> outputs;
    std::vector<PassOn> asked;  // before it had ended
  };
  void end(const RequestName& name, Entry& entry);
  void send(PpRank caller, const Entry& entry, const PassOn& message) const;

  const Send send_;
  std::map<RequestName, Entry> entries_;
};

}  // namespace smp::server
