// smp/config.h: every setting of a run, with its default. docs/configuration.md lists the keys and
// the values that they take; smp::init resolves them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "smp/export.h"

namespace smp {

/// Settings given in code. Each has a key of the same name that a JSON file (`--smp.config FILE`),
/// the environment (`SMP_MICROBATCHES=8`) or a flag (`--smp.microbatches 8`) may set; the order of
/// precedence is flag > environment > file > this struct > built-in default. A field that still
/// has its default value counts as not set in code.
struct SMP_API Config {
  // Degrees and placement of ranks.

  /// Number of stages the model is cut into. Default: what remains of the world size, so that
  /// `mpirun -n 4` trains over 4 stages. Older name of the key: `partitions`.
  std::optional<int> pipeline_parallel_degree = std::nullopt;
  /// Ranks over which distributed modules are sliced (smp/tp.h).
  int tensor_parallel_degree = 1;
  /// Whether ranks beyond `pipeline_parallel_degree` train replicas of the model, each on samples
  /// of its own: `mpirun -n 4` with 2 stages makes 2 replicas. false refuses such a job.
  bool ddp = true;
  /// MiB of gradients that replicas add up at once; the first bucket of a step has at most 1.
  double bucket_cap_mb = 25;
  /// Whether replicas add up gradients while the last microbatch's backward still runs: takes
  /// memory for the sums until the step's end. The same bits as without.
  bool overlapping_allreduce = true;
  /// Replicas that do not start from the same values: "equal" refuses them and names what differs,
  /// "first" gives all of them those of the first.
  std::string initial_values = "equal";
  /// Whether every step that computes gradients begins with the buffers (running statistics) of the
  /// first replica. Otherwise each replica keeps those of its own samples.
  bool broadcast_buffers = false;
  /// Whether each replica keeps the optimizer's state of its share of the parameters only: sends as
  /// much as without, but gradients and state take less memory (smp/distributed_optimizer.h).
  bool shard_optimizer_state = false;
  /// How (replica D, stage P, tensor T) map to ranks: a permutation of the three letters whose
  /// right-most letter varies fastest, or "cluster" (DPT), or "spread" (TPD).
  std::string placement_strategy = "cluster";
  /// How distributed transformer layers are cut (docs/tensor_parallelism.md): "memory" has no
  /// activation twice on the ranks that share a layer, "speed" sends less between them.
  std::string optimize = "memory";
  /// Whether the ranks that share distributed modules are all given the same batch, the one that
  /// smp::data_shard() names; otherwise each reads samples of its own (docs/tensor_parallelism.md).
  /// Other name of the key: `_prescaled_batch`.
  bool prescaled_batch = false;

  // Pipeline.

  /// Slices of each batch that travel through the stages independently. 1 means no overlap; 2
  /// per stage or more keep stages busy, with 4 they stand still for a fifth of a step at most.
  int microbatches = 1;
  /// "interleaved" mixes forwards and backwards and so holds few activations; "simple" runs all
  /// forwards, then all backwards; "1f1b", "1f1b+N", "zero_bubble" and "zero_bubble+N" keep to
  /// lists; "file:PATH" your own (docs/schedules.md).
  std::string pipeline = "interleaved";
  /// Microbatches in flight under "interleaved"; fewer need less memory. Default: 2 * stages + 2.
  std::optional<int> active_microbatches = std::nullopt;

  // Placement of modules.

  /// Whether modules that are not placed by hand are split automatically; otherwise they go to
  /// `default_partition`.
  bool auto_partition = true;
  /// Stage of every module that is not placed by hand; needed if `auto_partition` is off.
  std::optional<int> default_partition = std::nullopt;
  /// Types of modules that are not cut, with commas between them: "Attention, FeedForward". Each
  /// module of such a type runs on one stage with everything below it.
  std::string keep_whole = {};
  /// A plan to use instead of making one, as written to `plan.json` of a run. Other name of the
  /// key: `partition_file`.
  std::string plan_file = {};
  /// How the split is found: "best" (the fastest in simulation of all that follow), "tree" (the
  /// paper's algorithm), "contiguous" (runs of modules in execution order), "search".
  std::string partition_strategy = "best";
  /// Weight of memory against computation in a module's cost, 0 to 1 (alpha of paper App. C.3).
  double memory_weight = 0.8;
  /// Split by the number of modules instead of running the model once to see what they cost.
  bool skip_tracing = false;
  /// 0: modules and messages are priced by what is known of operators and machines, the same at
  /// every start. k > 0: by a clock, modules by the median of k runs; then two runs of one program
  /// may get different plans.
  int trace_repeats = 0;
  /// How many of the first step's microbatches are looked at, for models that do not do the same
  /// for each: modules cost what they cost on average (docs/partitioning.md#costs).
  int trace_microbatches = 1;
  /// What the stages compute on, to price modules by: one name for all, or one a stage with commas
  /// between them, "h100, h100, a100, cpu" (docs/partitioning.md#devices). Default: a core each.
  std::string devices = {};
  /// Stages of one node, for messages that cross a network; 0: as the job runs, and, if it is only
  /// planned, all on one node.
  int stages_per_node = 0;
  /// Network adapters of a node, dealt to its stages in turn. Messages of one adapter queue.
  int network_ports = 1;
  /// Bandwidth of each adapter, in Gbit/s, one way.
  double network_gbit = 100;
  /// Relative speed of each stage, for machines that differ; default: all alike. With `devices`:
  /// over what these say.
  std::vector<double> stage_speeds = {};
  /// Memory of each stage in GiB (one number: of every stage); a plan that needs more is refused.
  std::vector<double> stage_memory = {};
  /// Folder of plans of earlier starts, which then need no tracing: "auto" is the user's cache
  /// folder, "off" is none.
  std::string plan_cache = "auto";
  /// Modules built under smp::delay_param_initialization take no memory until they are placed;
  /// false makes that scope do nothing.
  bool delayed_parameter_initialization = true;

  // Numbers.

  /// Seed of dropout masks and other random numbers of the model. The same seed gives the same
  /// numbers for every number of ranks, placement and schedule.
  std::uint64_t seed = 0;
  /// How the losses of microbatches are weighted in backward: "mean" (by their share of the rows,
  /// so the gradient is that of the mean over the batch), "sum" (each counts 1) or "weights".
  std::string loss = "mean";
  /// One weight per microbatch, for `loss = "weights"`.
  std::vector<double> loss_weights = {};
  /// Whether the outputs of a step reach every stage, or only the first.
  bool broadcast_outputs = true;

  // Runtime.

  /// On what this rank's tensors are, by LibTorch's name: "cpu", or "cuda": each rank of a machine
  /// takes a GPU, in turn (smp::device()). Tensors go from GPU to GPU of a machine without a detour
  /// through its memory. Models are moved there by the program, before they are wrapped.
  std::string device = "cpu";
  /// Who does the collectives of tensors of ranks that share layers (a TP_GROUP): "auto": NCCL, if
  /// every one of them can load it and has a GPU of its own, else messages between the ranks;
  /// "messages": always these; "nccl": NCCL, or an error that says which rank cannot, and why.
  std::string device_collectives = "auto";
  /// "auto": memory that two ranks of one machine share, and MPI between machines; "ucx", "ofi":
  /// the same with UCX (InfiniBand, RoCE, TCP) or libfabric (EFA, TCP) between machines, without
  /// the order that MPI keeps; "mpi": MPI everywhere; "local": all ranks in one process on one
  /// thread, for debugging.
  std::string transport = "auto";
  /// Whether ranks that share memory lend each other large tensors instead of copying them: both go
  /// on with the same memory, and whoever writes to it first gets a copy. Pointers to elements
  /// (`data_ptr()`) taken before a tensor went to another rank must not be written through after;
  /// set it to false if yours are.
  bool lend_tensors = true;
  /// Whether a second thread of each rank moves tensors while the rank computes, so that they are
  /// there when it looks for them. Worth it between machines (`transport = "ucx"` or "ofi") where
  /// cores are free: without shared memory, tensors move only while both ranks look. Has no effect,
  /// and a line says so, where tensors also go over MPI or between GPUs: those paths are one
  /// thread's.
  bool progress_thread = false;
  /// Whether calls of modules on other ranks return at once, with tensors whose values come when
  /// they are used, and go from rank to rank without a detour through their caller (smp/wait.h).
  bool promised_outputs = true;
  /// Steps that end like the five before them need no control messages: requests and answers are
  /// all that travels. Code may take other ways at any time (paper §4.4).
  bool static_mode = false;
  /// With `static_mode`, where outputs are promised: tensors go from rank to rank without a detour
  /// through their caller, and unasked where they went in the steps before. If false, they go
  /// through the caller of a module.
  bool fast_mode = true;
  /// Stack of each worker fiber, in bytes. Raise it if a deep module reports an overflow.
  std::int64_t fiber_stack_bytes = 1 << 20;
  /// Stall (something waits, no message moves, nothing starts) after which a rank reports whom it
  /// waits for, in seconds of real time; 0 means never.
  double stall_seconds = 30;
  /// Stall after which all waits of a rank end with PeerLostError, in seconds; 0 means never.
  double abort_seconds = 600;
  /// Silence after which a machine of the job counts as gone, or the network to it as cut, in
  /// seconds; 0 means that ranks of different machines do not watch each other. Kernels exchange
  /// the signs of life, so a rank may compute, or be stopped, for as long as it likes.
  double keep_alive_seconds = 15;
  /// The network interface over which they do, by its name on this rank's machine: "eth0".
  /// Default: any over which the other is reached.
  std::string keep_alive_interface = {};
  /// What a rank does while it waits: "spin" (lowest latency), "yield" (gives its core away), or
  /// "auto": yield where ranks outnumber cores.
  std::string idle_policy = "auto";
  /// LibTorch threads per rank; 0 means the cores that the ranks of this machine may use (by their
  /// masks and the limits of their cgroup), divided by their number.
  int intra_op_threads = 0;
};

}  // namespace smp
