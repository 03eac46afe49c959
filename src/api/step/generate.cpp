// api/step/generate.cpp: each token is a step without gradients.
#include "smp/text/generate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <numeric>
#include <string>
#include <vector>

#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/step/next_tokens.h"
#include "base/check.h"
#include "smp/step.h"

namespace smp {
namespace {

/// Numbers of caches, which tell one text from the next on all ranks: pp_rank 0's counts.
std::int64_t new_cache() {
  static std::atomic<std::int64_t> last{0};
  return ++last;
}

/// Returns what is wrong with the prompt; empty if nothing is.
std::string problem_with(const at::Tensor& prompt, const at::Tensor& present) {
  if (!prompt.defined() || prompt.dim() != 2 || prompt.numel() == 0 ||
      !c10::isIntegralType(prompt.scalar_type(), /*includeBool=*/false)) {
    return base::concat(
        "generate: the prompt is ",
        prompt.defined() ? base::concat(prompt.scalar_type(), ' ', prompt.sizes()) : "undefined",
        ", expected integers [B, P] with at least one token a row, on pp_rank 0");
  }
  if (!present.defined()) return {};
  if (present.sizes() != prompt.sizes()) {
    return base::concat("generate: present is ", present.sizes(), ", and the prompt ",
                        prompt.sizes());
  }
  const auto there = present.ne(0).to(at::kLong);
  const bool left =
      there.diff(1, 1).ge(0).all().item<bool>() && there.select(1, -1).ne(0).all().item<bool>();
  return left ? std::string()
              : "generate: present has padding on the right; each row must end with a token, so "
                "that new ones follow it: pad on the left";
}

/// One text in the making. What is read on pp_rank 0 only is set there only.
class Generation {
 public:
  Generation(const at::Tensor& prompt, const Decode& decode, const GenerateOptions& options,
             const at::Tensor& present)
      : decode_(decode), options_(options), rank_(Rank::find_current()) {
    check_choice(options);
    SMP_REQUIRE(options.max_new_tokens >= 0, "generate: max_new_tokens is ", options.max_new_tokens,
                ", must be 0 or more");
    if (rank_ != nullptr && !rank_->is_first_stage()) return;
    problem_ = problem_with(prompt, present);
    SMP_REQUIRE(rank_ != nullptr || problem_.empty(), problem_);
    if (!problem_.empty()) return;
    tokens_ = prompt.to(at::kLong);
    place_.cache = new_cache();
    place_.most = prompt.size(1) + options.max_new_tokens - 1;
    const bool padded = present.defined() && present.eq(0).any().item<bool>();
    // Of all tokens to come, too: what travels has one shape, which static_mode asks for.
    if (padded) present_ = at::constant_pad_nd(present.ne(0), {0, options.max_new_tokens}, 1);
    rows_.resize(static_cast<std::size_t>(prompt.size(0)));
    std::iota(rows_.begin(), rows_.end(), 0);
  }

  at::Tensor run() {
    const at::NoGradGuard no_grad;
    const auto body = [this](const at::Tensor& tokens, const at::Tensor& present,
                             const std::vector<std::int64_t>& rows) {
      return tokens_after(tokens, present, rows);
    };
    StepOptions step_options;
    step_options.microbatches = options_.microbatches;
    step_options.broadcast_outputs = true;
    auto step = smp::step(body, step_options);
    const auto next = [&] {
      return rank_ != nullptr ? step(tokens_, present_, rows_).concat()
                              : body(tokens_, present_, rows_);
    };
    if (options_.max_new_tokens == 0) {  // all ranks know the rows, and what is wrong with them
      place_.last = true;
      return next().to(at::kCPU).unsqueeze(1).narrow(1, 0, 0);
    }
    std::vector<at::Tensor> text;
    for (; number_ < options_.max_new_tokens; ++number_) {
      place_.last = number_ + 1 == options_.max_new_tokens;
      text.push_back(with_ends(next().to(at::kCPU)));
      go_on(text.back());
      if (place_.last || !all_ended()) continue;
      place_.last = true;
      static_cast<void>(next());  // so that layers keep nothing
      break;
    }
    return at::stack(text, 1);
  }

 private:
  /// The body of a step, for some of the rows.
  at::Tensor tokens_after(const at::Tensor& tokens, const at::Tensor& present,
                          const std::vector<std::int64_t>& rows) {
    SMP_REQUIRE(problem_.empty(), problem_);
    auto place = place_;
    place.row = rows.front();
    place.present = present;
    return next_tokens(decode_(tokens, place), options_, place.row, number_);
  }

  /// Replaces tokens of rows that have ended by padding.
  at::Tensor with_ends(at::Tensor next) {
    if (options_.eos_token_id.empty()) return next;
    if (ended_.defined()) next = next.masked_fill(ended_, options_.pad_token_id);
    const auto ends = at::isin(next, at::tensor(options_.eos_token_id.ids(), at::kLong));
    ended_ = ended_.defined() ? ended_.logical_or(ends) : ends;
    return next;
  }

  /// Ranks of a TP_GROUP have rows of their own, and each needs the others in every step.
  bool all_ended() const {
    const bool alone = rank_ == nullptr || rank_->topology().tp_size() == 1;
    return alone && ended_.defined() && ended_.all().item<bool>();
  }

  void go_on(const at::Tensor& next) {
    if (!tokens_.defined()) return;
    place_.begin += tokens_.size(1);
    tokens_ = next.unsqueeze(1).to(tokens_.device());
  }

  const Decode& decode_;
  const GenerateOptions& options_;
  Rank* const rank_;     // nullptr: no session
  std::string problem_;  // with the prompt, for all ranks
  at::Tensor tokens_;    // of the next call
  at::Tensor present_;   // of the prompt and all new ones; undefined: no padding
  std::vector<std::int64_t> rows_;
  nn::CachedTokens place_;
  std::int64_t number_ = 0;  // of the next token among the new ones
  at::Tensor ended_;         // [B]
};

}  // namespace

at::Tensor generate(const at::Tensor& prompt, const Decode& decode, const GenerateOptions& options,
                    const at::Tensor& present) {
  const PublicCall call("smp::generate");
  return Generation(prompt, decode, options, present).run();
}

}  // namespace smp
