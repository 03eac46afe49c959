// trial/trace_bytes.cpp: numbers as they lie in memory, lists behind their length.
#include "trial/trace_bytes.h"

#include <cstring>
#include <type_traits>

#include "base/check.h"

namespace smp::partitioning {
namespace {

class Out {
 public:
  std::string bytes;

  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class T>
  void put_all(const std::vector<T>& values) {
    put(values.size());
    for (const T& value : values) put(value);
  }
  void put_text(const std::string& text) {
    put(text.size());
    bytes += text;
  }
};

class In {
 public:
  explicit In(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> get_all() {
    std::vector<T> values;
    for (auto left = get<std::size_t>(); left > 0; --left) values.push_back(get<T>());
    return values;
  }
  std::string get_text() { return std::string(take(get<std::size_t>())); }
  void finish() const { SMP_ASSERT(bytes_.empty(), bytes_.size(), " bytes too many"); }

 private:
  std::string_view take(std::size_t size) {
    SMP_ASSERT(size <= bytes_.size(), "a trace that ends early");
    const auto taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  std::string_view bytes_;
};

void put(Out& out, const simulate::Trace& trace) {
  out.put_all(trace.calls);
  out.put(trace.body_after);
  out.put(trace.loss_call);
  out.put_all(trace.foreign_uses);
  out.put(trace.buffer_uses.size());
  for (const auto& use : trace.buffer_uses) {
    out.put(use.module);
    out.put(use.holder);
    out.put_text(use.name);
  }
  out.put(trace.shared.size());
  for (const auto& tensor : trace.shared) {
    out.put(tensor.bytes);
    out.put_all(tensor.keepers);
  }
  out.put_all(trace.uses);
  out.put(trace.state.size());
  for (const auto& change : trace.state) {
    out.put(change.module);
    out.put(change.kind);
    out.put_text(change.what);
  }
  out.put_all(trace.assumed);
  out.put(trace.used);
  out.put(trace.silent_nodes.size());
  for (const auto& name : trace.silent_nodes) out.put_text(name);
  out.put(trace.source);
  out.put(trace.backward_ratio);
  out.put(trace.weight_share);
  out.put(trace.processor_share);
  out.put_text(trace.device);
  out.put(trace.profiles.size());
  for (const auto& profile : trace.profiles) {
    out.put_text(profile.device);
    out.put(profile.speed);
    out.put_all(profile.times);
  }
  out.put(trace.others.size());
  for (const auto& other : trace.others) put(out, other);
}

simulate::Trace get(In& in) {
  simulate::Trace trace;
  trace.calls = in.get_all<simulate::TracedCall>();
  trace.body_after = in.get<simulate::ComputeInterval>();
  trace.loss_call = in.get<int>();
  trace.foreign_uses = in.get_all<simulate::WeightUse>();
  for (auto left = in.get<std::size_t>(); left > 0; --left) {
    auto& use = trace.buffer_uses.emplace_back();
    use.module = in.get<int>();
    use.holder = in.get<int>();
    use.name = in.get_text();
  }
  for (auto left = in.get<std::size_t>(); left > 0; --left) {
    auto& tensor = trace.shared.emplace_back();
    tensor.bytes = in.get<std::int64_t>();
    tensor.keepers = in.get_all<simulate::IntervalId>();
  }
  trace.uses = in.get_all<simulate::TensorUse>();
  for (auto left = in.get<std::size_t>(); left > 0; --left) {
    auto& change = trace.state.emplace_back();
    change.module = in.get<int>();
    change.kind = in.get<simulate::StateKind>();
    change.what = in.get_text();
  }
  trace.assumed = in.get_all<simulate::AssumedValue>();
  trace.used = in.get<bool>();
  for (auto left = in.get<std::size_t>(); left > 0; --left) {
    trace.silent_nodes.push_back(in.get_text());
  }
  trace.source = in.get<simulate::CostSource>();
  trace.backward_ratio = in.get<double>();
  trace.weight_share = in.get<double>();
  trace.processor_share = in.get<double>();
  trace.device = in.get_text();
  for (auto left = in.get<std::size_t>(); left > 0; --left) {
    auto& profile = trace.profiles.emplace_back();
    profile.device = in.get_text();
    profile.speed = in.get<double>();
    profile.times = in.get_all<simulate::IntervalTimes>();
  }
  for (auto left = in.get<std::size_t>(); left > 0; --left) trace.others.push_back(get(in));
  return trace;
}

}  // namespace

std::string traces_to_bytes(const std::vector<simulate::Trace>& traces) {
  Out out;
  out.put(traces.size());
  for (const auto& trace : traces) put(out, trace);
  return std::move(out.bytes);
}

std::vector<simulate::Trace> traces_from_bytes(std::string_view bytes) {
  In in(bytes);
  std::vector<simulate::Trace> traces;
  for (auto left = in.get<std::size_t>(); left > 0; --left) traces.push_back(get(in));
  in.finish();
  return traces;
}

}  // namespace smp::partitioning
