// server/step/kept_outputs.cpp: who asks too early waits.
#include "server/step/kept_outputs.h"

#include <utility>

#include "base/check.h"

namespace smp::server {

void KeptOutputs::expect(const RequestName& name, const std::vector<SendAhead>& ahead) {
  auto& entry = entries_[name];
  for (const auto& [output, to, times] : ahead) {
    entry.asked.push_back({name.request, output, to, name.request, output, /*ahead=*/true, times});
  }
}

void KeptOutputs::keep(const RequestName& name, std::vector<KeptOutput>&& outputs, bool unusual) {
  auto& entry = entries_.at(name);
  entry.outputs = std::move(outputs);
  entry.unusual = unusual;
  end(name, entry);
}

void KeptOutputs::fail(const RequestName& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return;
  found->second.failed = true;
  end(name, found->second);
}

void KeptOutputs::end(const RequestName& name, Entry& entry) {
  entry.ended = true;
  for (const auto& message : std::exchange(entry.asked, {})) send(name.caller, entry, message);
  if (entry.released) entries_.erase(name);
}

void KeptOutputs::pass_on(PpRank caller, const PassOn& message) {
  auto& entry = entries_[{caller, message.request}];
  if (!entry.ended) return entry.asked.push_back(message);
  send(caller, entry, message);
}

void KeptOutputs::release(const RequestName& name) {
  auto& entry = entries_[name];
  entry.released = true;
  if (entry.ended) entries_.erase(name);
}

void KeptOutputs::send(PpRank caller, const Entry& entry, const PassOn& message) const {
  PassedOn answer{caller, message.consumer, message.index, entry.failed};
  answer.unusual = entry.unusual;
  answer.ahead = message.ahead;
  answer.times = message.times;
  if (!entry.failed) {
    SMP_ASSERT(message.output < entry.outputs.size(), "output ", message.output, " of ",
               entry.outputs.size());
    const auto& output = entry.outputs[message.output];
    answer.tensors = output.tensors;
    answer.forms = output.forms;
  }
  send_(message.to, std::move(answer));
}

}  // namespace smp::server
