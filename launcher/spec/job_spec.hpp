#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launcher/core/error.hpp"

namespace dtrain {

// What a job YAML asks for, after defaults, coercions and ${VAR}. Plain data: no file is read and
// nothing is checked here but in validate().

// GPUs of one rank: whole ones, or a part of one that others share. Counted in ten-thousandths, as
// Ray does, so that sums are exact.
struct GpuAmount {
  static constexpr int kOne = 10'000;

  constexpr GpuAmount() = default;
  constexpr GpuAmount(int whole) : parts(std::int64_t{whole} * kOne) {}  // NOLINT: a number of GPUs

  constexpr int whole() const { return static_cast<int>(parts / kOne); }
  constexpr bool is_part() const { return parts > 0 && parts < kOne; }
  // Of each GPU that it is of, in ten-thousandths.
  constexpr int of_each() const { return is_part() ? static_cast<int>(parts) : kOne; }
  auto operator<=>(const GpuAmount&) const = default;

  std::int64_t parts = 0;
};

// Per rank. Absent means the default: GPU 1 with nproc_per_node "gpu", else CPU 1.
struct Resources {
  std::optional<double> cpu;            // CPUs
  std::optional<GpuAmount> gpu;         // GPUs
  std::optional<std::uint64_t> memory;  // bytes

  bool operator==(const Resources&) const = default;
};

// What a node's label is to be: "v", "!v", "in(v, w)" or "!in(v, w)", as in Ray's label_selector.
struct LabelRule {
  bool negated = false;  // any other, or none
  std::vector<std::string> values;

  bool takes(const std::string* label) const;  // null: the node has none of that name
  auto operator<=>(const LabelRule&) const = default;
};

// nnodes: N, or "min:max".
struct NodeCount {
  int min = 1;
  int max = 1;

  bool operator==(const NodeCount&) const = default;
};

// nproc_per_node: N, "gpu" (all GPUs of the node) or "cpu" (all its CPUs).
enum class ProcsKind : std::uint8_t { number, gpu, cpu };
struct ProcsPerNode {
  ProcsKind kind = ProcsKind::number;
  int number = 1;

  bool operator==(const ProcsPerNode&) const = default;
};

enum class ScoreOrder : std::uint8_t { max, min };
struct CheckpointSpec {
  std::optional<int> num_to_keep;              // absent: all
  std::optional<std::string> score_attribute;  // a metric's name
  ScoreOrder score_order = ScoreOrder::max;

  bool operator==(const CheckpointSpec&) const = default;
};

enum class SameFailure : std::uint8_t { stop, restart };
// Which failures are followed by a new attempt, and when. The words of `on` are those of
// check_failure() in values.hpp.
struct RestartSpec {
  std::optional<std::vector<std::string>> on;  // absent: after each
  std::vector<std::string> count;              // node_lost, preempted: of max_restarts too
  std::optional<std::chrono::seconds> window;  // max_restarts in this time; absent: in all
  std::chrono::seconds backoff{0};
  SameFailure same_failure = SameFailure::stop;  // twice in a row, at the same step

  bool operator==(const RestartSpec&) const = default;
};

// A secret's value comes from the CLI's environment variable of that name, or from a file.
struct SecretSpec {
  std::string name;                 // the environment variable that the ranks get
  std::optional<std::string> file;  // absolute, or empty: the CLI's environment

  bool operator==(const SecretSpec&) const = default;
};

enum class BundleMode : std::uint8_t { automatic, off };
enum class OnHeadLost : std::uint8_t { go_on, stop };  // "continue", "stop"
enum class Launcher : std::uint8_t { direct, srun };
enum class OnHang : std::uint8_t { report, restart, nothing };
enum class CpuBind : std::uint8_t { none, cores };

// What of a job was sent to the cluster by content; filled in by `submit`, never by a YAML. Trees
// are those of launcher/files/content_tree.hpp, by their SHA-256.
struct JobContent {
  std::string workdir_tree;   // each attempt on each node gets a folder made from it
  std::string bundle_tree;    // shared libraries; empty: none
  std::string program;        // command[0] in the bundle's tree; empty: as the command says
  std::string glibc;          // the oldest that will do, "2.34"; empty: any
  std::string glibc_of;       // the file that wants it
  std::string profiler_tree;  // dtrain-profiler as bin/dtrain-profiler, and its libraries; or empty
  std::uint64_t size = 0;     // bytes of all trees, for people

  std::vector<std::string> trees() const;  // those that there are
  bool operator==(const JobContent&) const = default;
};

// A committed checkpoint that a job starts from though no job of its line made it; filled in by
// `submit`, never by a YAML.
struct StartCheckpoint {
  std::string job;  // one of this cluster, and its `number`; empty: `path`
  int number = 0;
  std::string path;  // absolute, of the folder where it was submitted
  std::string tree;  // the folder by content, where it was sent; empty: it is read in place

  std::string str() const;  // for people
  bool operator==(const StartCheckpoint&) const = default;
};

// Which part of which search a job is; set by the head, never by a YAML.
struct TrialOfSearch {
  std::string search;
  std::uint64_t number = 0;
  int leg = 0;         // from 1; 0: it goes on with one, and is no part of the search
  std::string params;  // JSON, nested as DTRAIN_PARAMS has it

  bool operator==(const TrialOfSearch&) const = default;
};

struct JobSpec {
  std::string name;                  // default: the program's file name, see values.hpp
  std::vector<std::string> command;  // argv; for a string in the YAML: one element, and shell set
  bool shell = false;                // run as /bin/sh -c command[0]
  std::string workdir;               // absolute; default: the YAML's folder, else where submit ran
  std::map<std::string, std::string> env;
  std::vector<SecretSpec> secrets;
  std::string setup;  // shell lines, once per node and attempt, before its ranks; empty: none
  NodeCount nnodes;
  ProcsPerNode nproc_per_node;
  int max_restarts = 0;
  RestartSpec restart;
  int spares = 0;  // nodes that are kept prepared, to take the place of lost ones
  Resources resources;
  bool resources_given = false;  // a job that asks for nothing and is too large may run alone
  // Of each rank too: what `resources` of node types has under names of one's own.
  std::map<std::string, double> custom_resources;
  std::map<std::string, std::string> label_selector;  // by a label's name, a LabelRule as written
  std::string storage_path;                           // absolute; empty: the head's own
  CheckpointSpec checkpoint;
  BundleMode bundle = BundleMode::automatic;
  OnHeadLost on_head_lost = OnHeadLost::go_on;
  Launcher launcher = Launcher::direct;
  CpuBind cpu_bind = CpuBind::none;
  std::chrono::seconds stop_grace{30};
  std::optional<std::chrono::seconds> timeout;        // of one job, over all attempts
  std::optional<std::chrono::seconds> queue_timeout;  // in state queued
  std::optional<std::chrono::seconds> hang_timeout;   // absent: by its own steps, see hang.hpp
  OnHang on_hang = OnHang::report;
  // Bytes that are kept of each stream of a rank; 0: all. Absent: limits::kLog.
  std::optional<std::uint64_t> log_limit;
  int priority = 0;                // larger goes first
  std::vector<std::string> after;  // job ids that must have succeeded first
  std::string resumes;             // id of the ended job that this one goes on with; empty: none
  std::optional<StartCheckpoint> start;
  std::optional<JobContent> content;  // absent: the job runs in place, where it was submitted
  std::optional<TrialOfSearch> trial;

  std::uint64_t kept_log() const;  // log_limit, or what it is when absent
  int bound_cpus() const;          // CPUs of each rank's own; 0: ranks are not bound
  // Whole CPUs of a rank that asks for them, 1 at least; a trial asks for 1 if it does not say. 0:
  // any that there are.
  int rank_threads() const;
  bool is_leg() const { return trial && trial->leg > 0; }  // of a search's trial
  bool operator==(const JobSpec&) const = default;
};

// Every problem of the values at once (names by the allow-list, ranges, environment names, NUL,
// sizes), without places in a file. Empty: fine. The head calls it on what comes over the wire, so
// it trusts nothing.
std::vector<Error> validate(const JobSpec& spec);

// The wire and database form; keys as in the YAML (durations in seconds as stop_grace_s and so on).
// from_json is strict about types and throws Error(invalid) naming the key. Whoever submits hears
// of a key that is not known, for a newer dtrain may have asked for what would not be done; so keys
// that came later than others are left out at their default. In a database such are ignored.
enum class UnknownKeys : std::uint8_t { ignore, refuse };
nlohmann::json to_json(const JobSpec& spec);
JobSpec job_spec_from_json(const nlohmann::json& json, UnknownKeys unknown = UnknownKeys::ignore);

}  // namespace dtrain
