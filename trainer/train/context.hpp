#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/environment.hpp"
#include "trainer/core/libtorch_check.hpp"
#include "trainer/report/step_clock.hpp"

namespace c10d {
class ProcessGroup;
}

namespace dtrain::train::comm {
class SharedGroup;
}

namespace dtrain::train {

enum class Transport : std::uint8_t { automatic, gloo, shared_memory };

// This process as a rank of its group: who it is, which device it has, and the collectives that
// training programs need. With one rank there is no network and every collective is a no-op.
//
// All ranks call the same collectives in the same order, each from one thread. A peer that dies
// makes them throw at once; one that hangs, after `timeout`.
//
// Leaving: the destructor says goodbye to the other ranks, so that none of them loses a connection
// that it still needs. When it runs because an exception flies, it says nothing, waits for nobody
// and leaves the network to the end of the process (see run.hpp).
class Context {
 public:
  struct Options {
    std::chrono::milliseconds timeout = std::chrono::minutes(30);      // of a collective
    std::chrono::milliseconds join_timeout = std::chrono::minutes(5);  // until all ranks are there
    int num_threads = 0;  // of ATen in this process; 0: OMP_NUM_THREADS, else its own choice
    Transport transport = Transport::automatic;  // of CPU tensors; DTRAIN_TRANSPORT overrides it
    bool communication_thread = false;  // collectives in shared memory beside backward: comm/
  };

  // Joins the group that the environment names: dtrain's, torchrun's, Slurm's, or nobody's. Blocks
  // until all ranks are there. CPU tensors go through shared memory if all ranks can share it,
  // else through Gloo: on the interfaces of GLOO_SOCKET_IFNAME, else on loopback if all ranks are
  // on one node, else on the node's address in DTRAIN_NODE_IPS. In a CUDA build with a visible GPU
  // it is NCCL as well, and the device is cuda:LOCAL_RANK (gpu_index in core/environment.hpp).
  // Throws Error (or c10::Error) that names the address if the group does not come together.
  static Context join();
  static Context join(const Environment& environment, const Options& options);

  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) = delete;

  const Environment& environment() const;
  int rank() const;
  int world_size() const;
  bool is_first() const { return rank() == 0; }
  int local_rank() const { return environment().local_rank; }
  int local_world_size() const { return environment().local_world_size; }
  int node_rank() const { return environment().node_rank; }
  const std::string& run_name() const { return environment().run; }  // empty if nobody gave one
  int restart_count() const { return environment().attempt - 1; }
  c10::Device device() const;
  // What carries CPU tensors; automatic with one rank, which sends nothing.
  Transport transport() const;
  // Why it is not shared memory; empty if it is, or if something else was asked for.
  const std::string& no_shared_memory() const;

  void barrier();
  // In place, over all ranks. The tensor is on device() or on the CPU.
  void all_reduce_sum(at::Tensor tensor);
  double all_reduce_sum(double value);
  std::vector<double> all_reduce_sum(std::vector<double> values);
  void broadcast(at::Tensor tensor, int from = 0);
  std::string broadcast(const std::string& text, int from = 0);
  // A copy of every rank's tensor, by rank. All have the same shape and type.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor);
  // Every rank's text, by rank, each of its own length. (JSON: trainer/train/objects.hpp.)
  std::vector<std::string> all_gather(const std::string& text);

  // Notes: short texts beside the collectives, kept by the group's store, for what one rank must
  // tell the others while they are busy. new_note() names one, the same on all ranks that call it
  // equally often, on the training's thread; the other two are for any thread and best effort: a
  // store that does not answer within a second takes nothing and has nothing. With one rank there
  // is nobody to tell.
  std::string new_note();
  void write_note(const std::string& name, const std::string& text) const;
  std::optional<std::string> read_note(const std::string& name) const;

  // The step that this rank works on: for its heartbeats, its crash report, and its peers' messages
  // when it does not come. Session::progress() calls it. The training's thread, as set_phase().
  void set_step(std::int64_t step);
  // What it is at, for its heartbeats: a static text. Returns what it was at before. Of "data" and
  // "compute" it is told how much of a step they take, by which a slow rank is found
  // (docs/rank_contract.md); what lies in others, or in none (""), belongs to no step.
  const char* set_phase(const char* phase);
  // What the steps of this rank have taken so far, and where that time went. Any thread.
  std::optional<StepSums> step_sums() const;

  // Seeds the generators of this rank: with seed + rank, so that ranks differ.
  void seed(std::uint64_t seed) const;

  // Null when there is one rank. For what c10d itself wants (trainer/train/ddp.cpp).
  c10d::ProcessGroup* process_group() const;
  // What is beneath it for CPU tensors; null where that is not shared memory, and where a
  // communication thread calls it: then the order of its calls is the process group's.
  comm::SharedGroup* shared_group() const;

 private:
  struct State;
  explicit Context(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// While it lives this rank is at something else than before.
class InPhase {
 public:
  InPhase(Context& context, const char* phase)
      : context_(context), before_(context.set_phase(phase)) {}
  ~InPhase() { context_.set_phase(before_); }
  InPhase(const InPhase&) = delete;
  InPhase& operator=(const InPhase&) = delete;

 private:
  Context& context_;
  const char* before_;
};

}  // namespace dtrain::train
