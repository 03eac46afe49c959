// report/analysis/step_slices.h: a step as viewers of traces show it: slices on a track a rank, and
// flows from slice to slice. What the formats of traces have in common. Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/analysis/step_timeline.h"

namespace smp::report {

/// One span, with times in nanoseconds since the start of the first span.
struct Slice {
  base::Nanoseconds start = 0, end = 0;
  base::Nanoseconds cpu = 0;
  int microbatch = -1;
  std::string name;      ///< path of the module, or what the rank did between steps
  std::string category;  ///< phase_name()
};

struct Track {
  int pp_rank = 0;
  std::string name;           ///< "rank 0"; "stage 0" of a simulated step
  std::vector<Slice> slices;  ///< in order of time
};

/// One end of a flow: StepSlices::tracks[track].slices[slice].
struct SliceAt {
  std::size_t track = 0, slice = 0;
};

/// A message, from the slice that sent it to the slice that could begin because of it.
struct SliceFlow {
  SliceAt from, to;
  base::Nanoseconds start = 0;  ///< within `from`
  base::Nanoseconds end = 0;    ///< not before `start`; within `to`, or before it
  bool answer = false;          ///< else a request, or a tensor that was promised to one
};

struct StepSlices {
  std::vector<Track> tracks;     ///< as StepTimeline::ranks
  std::vector<SliceFlow> flows;  ///< as arrows_of()
};

/// Returns the step as slices and flows. Messages without a slice at both ends are left out: if
/// nothing was recorded after them, or if by the clocks of two machines the slice that began for a
/// message is older than the slice that sent it.
StepSlices slices_of(const StepTimeline& timeline);

}  // namespace smp::report
