// data/loading/token_loader.cpp: options that make sense, and where the loader stands.
#include "smp/data/token_loader.h"

#include <exception>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "data/documents/document_source.h"
#include "data/loading/production.h"
#include "data/loading/vocabulary.h"

namespace smp::data {
namespace {

void require_sense(const TokenLoaderOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;  // no product of these overflows
  SMP_REQUIRE(options.context >= 1 && options.rows >= 1 && options.replicas >= 1 &&
                  options.context <= kMost / options.rows / options.replicas,
              "a TokenLoader of ", options.rows, " rows of ", options.context, " tokens for ",
              options.replicas, " replicas: each must be at least 1, and their product at most ",
              kMost);
  SMP_REQUIRE(options.replica >= 0 && options.replica < options.replicas, "there is no replica ",
              options.replica, " of ", options.replicas);
  SMP_REQUIRE(options.epochs >= 0, "epochs is ", options.epochs, "; 0 is without an end");
  SMP_REQUIRE(options.threads >= 0 && options.threads <= 256, "threads is ", options.threads,
              "; 0 to 256 are possible");
  SMP_REQUIRE(options.batches_ahead >= 1, "batches_ahead is ", options.batches_ahead,
              ", and must be at least 1");
  SMP_REQUIRE(options.deadline_seconds > 0, "deadline_seconds is ", options.deadline_seconds,
              ", and must be above 0");
}

std::uint64_t fingerprint(const Vocabulary& vocabulary, std::optional<std::int32_t> begin) {
  auto key = base::mix_key(0, static_cast<std::uint64_t>(vocabulary.size));
  key = base::mix_key(key, static_cast<std::uint64_t>(vocabulary.end_of_document));
  return base::mix_key(key, static_cast<std::uint64_t>(begin.value_or(-1)));
}

}  // namespace

class TokenLoader::Impl {
 public:
  Impl(Documents documents, TokenLoaderOptions options)
      : documents_(std::move(documents)),
        source_(DocumentSource::of(documents_)),
        options_(std::move(options)),
        vocabulary_(common_vocabulary(source_, options_.tokenizer.get())),
        order_(source_.size(), options_.shuffle, options_.seed),
        reader_(source_, order_,
                {.tokenizer = options_.tokenizer.get(),
                 .skip_damaged = options_.skip_damaged,
                 .epochs = options_.epochs}) {
    require_sense(options_);
    const auto begin = options_.begin_of_document;
    SMP_REQUIRE(!begin || (*begin >= 0 && *begin < vocabulary_.size), "begin_of_document is ",
                begin.value_or(0), ", but ", vocabulary_.name, " has ", vocabulary_.size,
                " tokens");
  }
  ~Impl() { end_production(); }

  std::optional<Batch> next() {
    if (error_) std::rethrow_exception(error_);
    start_production();
    std::optional<PackedBatch> packed;
    try {
      packed = production_->next();
    } catch (const ResourceError&) {  // late: the next call may find it
      throw;
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
    if (!packed) return std::nullopt;
    place_ = packed->after;
    return std::move(packed->batch);
  }

  std::string state() const { return place_text(place_, identity()); }
  void load_state(std::string_view state) {
    const auto place = read_place(state, identity(), source_.size());
    end_production();
    error_ = nullptr;
    place_ = place;
  }

  const TokenLoaderCounters& counters() const { return place_.counters; }
  const TokenLoaderOptions& options() const { return options_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  LoaderIdentity identity() const {
    return {source_.fingerprint(), fingerprint(vocabulary_, options_.begin_of_document),
            options_.shuffle, options_.seed};
  }
  void start_production() {
    SMP_REQUIRE(!production_ || production_->is_here() || options_.threads == 0,
                "a TokenLoader that has begun to read cannot be used in a forked child: make one "
                "there");
    if (production_) return;
    const StepShape shape{options_.context, options_.rows, options_.replica, options_.replicas,
                          options_.reset_at_documents};
    const Packer::Options packing{.shape = shape,
                                  .begin_token = options_.begin_of_document,
                                  .end_token = vocabulary_.end_of_document,
                                  .ignore_across_documents = options_.ignore_across_documents,
                                  .drop_last = options_.drop_last,
                                  .documents = source_.size(),
                                  .epochs = options_.epochs};
    production_ = std::make_unique<Production>(
        reader_, packing, place_,
        Production::Options{options_.threads, options_.batches_ahead, options_.deadline_seconds});
  }
  void end_production() {
    // A forked child has none of the threads that would have to be waited for.
    if (production_ && !production_->is_here()) (void)production_.release();
    production_.reset();
  }

  Documents documents_;
  const DocumentSource& source_;
  TokenLoaderOptions options_;
  Vocabulary vocabulary_;
  DocumentOrder order_;
  PortionReader reader_;
  LoaderPlace place_;
  std::unique_ptr<Production> production_;  // made when it is first needed
  std::exception_ptr error_;
};

TokenLoader::TokenLoader(Documents documents, TokenLoaderOptions options)
    : impl_(std::make_unique<Impl>(std::move(documents), std::move(options))) {}
TokenLoader::~TokenLoader() = default;
TokenLoader::TokenLoader(TokenLoader&&) noexcept = default;
TokenLoader& TokenLoader::operator=(TokenLoader&&) noexcept = default;

std::optional<Batch> TokenLoader::next() { return impl_->next(); }
std::string TokenLoader::state() const { return impl_->state(); }
void TokenLoader::load_state(std::string_view state) { impl_->load_state(state); }
TokenLoaderCounters TokenLoader::counters() const { return impl_->counters(); }
const TokenLoaderOptions& TokenLoader::options() const { return impl_->options(); }
std::int64_t TokenLoader::vocab_size() const { return impl_->vocabulary().size; }

}  // namespace smp::data
