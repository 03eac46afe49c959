// deferred/random_stream.cpp: counting draws, and moving generators.
#include "deferred/random_stream.h"

#include <ATen/ops/empty.h>

#include <mutex>

#include "base/random_jump.h"

namespace smp::deferred {
namespace {

/// A start is 2.5 KB, and to find a position behind it takes 1 ns a number.
constexpr std::uint64_t kNumbersOfAStart = 1 << 20;

at::CPUGeneratorImpl& impl(const at::Generator& generator) {
  return *static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

bool same_state(const at::Generator& a, const at::Generator& b) {
  const auto x = impl(a).engine().data();
  const auto y = impl(b).engine().data();
  return x.left_ == y.left_ && x.next_ == y.next_ && x.state_ == y.state_ &&
         impl(a).next_float_normal_sample() == impl(b).next_float_normal_sample() &&
         impl(a).next_double_normal_sample() == impl(b).next_double_normal_sample();
}

void copy_state(const at::Generator& from, const at::Generator& to) {
  impl(to).set_engine(impl(from).engine());
  impl(to).set_next_float_normal_sample(impl(from).next_float_normal_sample());
  impl(to).set_next_double_normal_sample(impl(from).next_double_normal_sample());
}

void skip(const at::Generator& generator, std::uint64_t count) {
  auto engine = impl(generator).engine();
  base::skip_numbers(engine, count);
  impl(generator).set_engine(engine);
}

/// Returns the numbers drawn from a freshly seeded generator; right while they are fewer than 624.
std::uint64_t numbers_drawn(const at::Generator& fresh) {
  return impl(fresh).engine().data().next_;
}

std::uint64_t numbers_to_fill(std::int64_t size, bool normal, at::ScalarType type) {
  const auto generator = at::detail::createCPUGenerator(1);
  auto tensor = at::empty({size}, at::TensorOptions(type).device(at::kCPU));
  normal ? tensor.normal_(0, 1, generator) : tensor.uniform_(0, 1, generator);
  return numbers_drawn(generator);
}

}  // namespace

bool draws_random(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::nondeterministic_seeded)) return true;
  for (const auto& argument : op.schema().arguments()) {
    if (argument.name() == "generator") return true;
  }
  return false;
}

DrawCounts::Rule DrawCounts::measure(bool normal, at::ScalarType type) {
  Rule rule;
  rule.row = numbers_to_fill(16, normal, type);
  for (std::int64_t i = 1; i < 16; ++i) {
    rule.tail[i] = numbers_to_fill(16 + i, normal, type) - rule.row;
    rule.small = rule.small && numbers_to_fill(i, normal, type) == rule.tail[i];
  }
  rule.exact = numbers_to_fill(48, normal, type) == 3 * rule.row &&
               numbers_to_fill(69, normal, type) == 4 * rule.row + rule.tail[5];
  return rule;
}

std::optional<std::uint64_t> DrawCounts::of(const c10::OperatorHandle& op,
                                            const at::Tensor& filled) {
  const auto& name = op.schema().name();
  const bool normal = name == "aten::normal_" || name == "aten::randn";
  if (!normal && name != "aten::uniform_" && name != "aten::rand") return std::nullopt;
  if (!at::isFloatingType(filled.scalar_type()) || !filled.is_contiguous()) return std::nullopt;
  const auto [found, fresh] = rules_.try_emplace({normal, filled.scalar_type()});
  if (fresh) found->second = measure(normal, filled.scalar_type());
  const auto& rule = found->second;
  const auto size = static_cast<std::uint64_t>(filled.numel());
  if (!rule.exact || (size < 16 && (normal || !rule.small))) return std::nullopt;
  return size / 16 * rule.row + rule.tail[size % 16];
}

RandomPosition RandomStream::position(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  const bool goes_on = generator_.defined() && generator == generator_ &&
                       same_state(generator, left_) && drawn_ < kNumbersOfAStart;
  generator_ = std::move(generator);
  if (!goes_on) {
    start_ = generator_.clone();
    left_ = start_.clone();
    drawn_ = 0;
  }
  return {start_, drawn_};
}

void RandomStream::skip(std::uint64_t count) {
  const std::lock_guard lock(generator_.mutex());
  deferred::skip(generator_, count);
  copy_state(generator_, left_);
  drawn_ += count;
}

void RandomStream::follow(const at::Generator& drawn) {
  const std::lock_guard lock(generator_.mutex());
  copy_state(drawn, generator_);
  drawn_ = kNumbersOfAStart;  // how many they were is not known
}

const at::Generator& RandomCursor::at(const RandomPosition& position,
                                      std::optional<std::uint64_t> count) {
  if (start_ != position.start || !drawn_ || *drawn_ > position.drawn) {
    start_ = position.start;
    generator_ = position.start.clone();
    drawn_ = 0;
  }
  skip(generator_, position.drawn - *drawn_);
  drawn_.reset();
  if (count) drawn_ = position.drawn + *count;
  return generator_;
}

}  // namespace smp::deferred
