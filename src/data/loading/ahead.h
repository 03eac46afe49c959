// data/loading/ahead.h: things that threads make ahead, and that are taken in their order.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/signals_blocked.h"

namespace smp::data {

/// Thrown by take() of something that was stopped, for its own threads.
struct AheadStopped {};

/// Calls make(0), make(1), ... on threads of its own, and hands the results out in that order. No
/// more than `most` are begun and not taken. Threads: one takes; any stops.
template <class T>
class Ahead {
 public:
  /// Returns thing `number`, or nothing: it and all behind it do not exist.
  using Make = std::function<std::optional<T>(std::int64_t number)>;

  Ahead(int threads, int most, Make make) : most_(most), make_(std::move(make)) {
    const base::SignalsBlocked blocked;
    try {
      for (int i = 0; i < threads; ++i) {
        threads_.emplace_back([this] { work(); });
        ::pthread_setname_np(threads_.back().native_handle(), "smp data");
      }
    } catch (const std::system_error& error) {
      end();
      throw ResourceError(base::concat("only ", threads_.size(), " of ", threads,
                                       " threads of a loader could be started: ", error.what(),
                                       "; set fewer"));
    }
  }
  /// Waits for what is being made.
  ~Ahead() { end(); }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  /// What take() found.
  struct Taken {
    bool in_time = true;     ///< false: it was not made before the deadline
    std::optional<T> thing;  ///< nothing, in time: there are no more
  };
  /// Waits for the next thing. What its make() threw is thrown here, and again by every later call.
  /// @param seconds  how long to wait at most; nothing: as long as it takes
  /// @throws AheadStopped
  Taken take(std::optional<double> seconds = std::nullopt) {
    std::unique_lock lock(mutex_);
    const auto is_made = [this] { return stopped_ || results_.contains(taken_); };
    constexpr double kForEver = 1e9;  // 30 years; more do not fit into nanoseconds
    if (!seconds || *seconds >= kForEver) {
      made_.wait(lock, is_made);
    } else if (!made_.wait_for(lock, std::chrono::duration<double>(*seconds), is_made)) {
      return {.in_time = false, .thing = std::nullopt};
    }
    if (stopped_) throw AheadStopped{};
    auto& result = results_.at(taken_);
    if (result.error) std::rethrow_exception(result.error);
    if (!result.thing) return {};  // stays, for whoever asks again
    Taken taken{true, std::move(result.thing)};
    results_.erase(taken_++);
    room_.notify_all();
    return taken;
  }

  /// The number of the thing that take() gives or waits for next.
  std::int64_t next() const {
    const std::scoped_lock lock(mutex_);
    return taken_;
  }

  /// Ends waiting, of its own threads and of who takes.
  void stop() {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    room_.notify_all();
    made_.notify_all();
  }

 private:
  void end() {
    stop();
    for (auto& thread : threads_) thread.join();
  }
  struct Result {
    std::optional<T> thing;
    std::exception_ptr error;
  };

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      room_.wait(lock, [this] { return stopped_ || over_ || begun_ < taken_ + most_; });
      if (stopped_ || over_) return;
      const auto number = begun_++;
      lock.unlock();
      auto result = made(number);
      lock.lock();
      if (!result.thing) {  // nothing behind it is wanted
        over_ = true;
        room_.notify_all();
      }
      results_.emplace(number, std::move(result));
      made_.notify_all();
    }
  }
  Result made(std::int64_t number) const {
    Result result;
    try {
      result.thing = make_(number);
    } catch (...) {
      result.error = std::current_exception();
    }
    return result;
  }

  mutable std::mutex mutex_;
  std::condition_variable room_;  // for another one
  std::condition_variable made_;
  std::int64_t begun_ = 0;
  std::int64_t taken_ = 0;
  std::map<std::int64_t, Result> results_;
  bool stopped_ = false;
  bool over_ = false;
  int most_;
  Make make_;
  std::vector<std::thread> threads_;
};

}  // namespace smp::data
