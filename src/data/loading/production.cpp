// data/loading/production.cpp: see the header.
#include "data/loading/production.h"

#include "base/check.h"

namespace smp::data {
namespace {

// For each thread one that it makes, and one that waits; and the one that is being packed.
int portions_ahead(int threads) { return 2 * threads + 1; }

}  // namespace

Production::Production(const PortionReader& reader, const Packer::Options& packing,
                       const LoaderPlace& start, const Options& options)
    : reader_(reader),
      start_(start.position),
      options_(options),
      packer_(packing, start, [this] { return next_portion(); }) {
  if (options.threads == 0) return;
  portions_.emplace(options.threads, portions_ahead(options.threads),
                    [this](std::int64_t number) { return reader_.next(start_, number); });
  batches_.emplace(1, options.batches_ahead, [this](std::int64_t) { return packer_.next(); });
}

Production::~Production() {
  if (portions_) portions_->stop();  // for whom the packing thread may wait
}

std::optional<PackedBatch> Production::next() {
  if (!batches_) return packer_.next();
  auto taken = batches_->take(options_.deadline_seconds);
  SMP_REQUIRE_AS(ResourceError, taken.in_time, "no batch within ", options_.deadline_seconds,
                 " s (deadline_seconds): the ", options_.threads,
                 " threads of the loader are busy with documents from ",
                 reader_.place(reader_.range(start_, portions_->next())),
                 " on; give it more threads, or pack the text to a token shard once");
  return std::move(taken.thing);
}

std::optional<Portion> Production::next_portion() {
  if (!portions_) return reader_.next(start_, read_++);
  return portions_->take().thing;
}

}  // namespace smp::data
