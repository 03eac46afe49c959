// alive/watchdog.h: a thread that looks on while a step runs, and speaks when the rank's thread
// cannot: it is stuck in a lock, in a wait of the user's own, or in a loop without end
// (docs/design.md, Waits without an end).
#pragma once

#include <functional>
#include <string>

namespace smp::server {

/// The watchdog of this process, made with the first session. It reads base::Pulse and RunningCall,
/// takes no lock that the rank's thread holds while it runs, and writes straight to stderr.
class Watchdog {
 public:
  struct Limits {
    double report_seconds;  ///< without a heartbeat in a step, after which it says so; 0: never
    double abort_seconds;   ///< after which waits end (StallWatch); 0: the job is never ended
    /// Seconds after that, until it ends the process.
    double grace_seconds;
  };
  /// Returns the grace, in seconds, that goes with `abort_seconds`: time to unwind, and to save
  /// something.
  static double grace_after(double abort_seconds) noexcept;

  /// A session of this process; the last one's limits hold.
  class Session {
   public:
    /// @param end_job  ends every process of the job, called on the watchdog's thread; when it
    ///                 returns, or takes over five seconds, this process ends
    Session(const Limits& limits, std::function<void()> end_job);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  /// Says, while it lives, that a step runs, or its trial.
  class Step {
   public:
    Step() noexcept;
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
  };

  /// Makes the job end `grace_seconds` from now, whatever its program catches, unless a step
  /// succeeds before. Called when all waits of this rank were ended after abort_seconds. Any
  /// thread.
  static void end_soon() noexcept;
  /// Calls end_soon() off, because a step has succeeded.
  static void calm_down() noexcept;
};

}  // namespace smp::server
