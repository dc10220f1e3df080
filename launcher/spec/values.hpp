#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "launcher/spec/cluster_spec.hpp"
#include "launcher/spec/job_spec.hpp"

// The values that have a written form of their own, for YAML, flags and JSON alike. The `parse_`
// functions throw Error(invalid) that says what was expected, with an example as its hint; ranges
// are validate()'s matter.
namespace dtrain {

NodeCount parse_node_count(std::string_view text);         // "4" or "2:8"
ProcsPerNode parse_procs_per_node(std::string_view text);  // "4", "gpu" or "cpu"
// Bytes: "1073741824", "4GiB", "500MB", "1.5Ti". Units of 1000: k M G T P; of 1024: Ki Mi Gi Ti
// Pi; a B after either, upper or lower case alike.
std::uint64_t parse_bytes(std::string_view text);
// "2", or below 1 a part with at most four decimals: "0.25". JSON has whole ones as whole numbers.
GpuAmount parse_gpus(std::string_view text);
GpuAmount gpus_from(double number);

BundleMode parse_bundle_mode(std::string_view text);   // "auto", "off"
OnHeadLost parse_on_head_lost(std::string_view text);  // "continue", "stop"
Launcher parse_launcher(std::string_view text);        // "direct", "srun"
ScoreOrder parse_score_order(std::string_view text);   // "max", "min"
OnHang parse_on_hang(std::string_view text);           // "report", "restart", "nothing"
CpuBind parse_cpu_bind(std::string_view text);         // "none", "cores"

SameFailure parse_same_failure(std::string_view text);  // "stop", "restart"

// A failure that `restart.on` may name: one of kFailures, an exit code of 1 to 255 ("75"), a signal
// ("SIGUSR1").
inline constexpr std::array kFailures{"exit_code", "signal",    "out_of_memory", "not_started",
                                      "node_lost", "preempted", "hang",          "other"};
void check_failure(std::string_view text);

LabelRule parse_label_rule(std::string_view text);  // "v", "!v", "in(v, w)", "!in(v, w)"

std::string to_string(NodeCount count);
std::string to_string(ProcsPerNode procs);
std::string gpus_text(GpuAmount gpus);  // "1", "0.25"
nlohmann::json to_json(GpuAmount gpus);
const char* to_string(BundleMode mode) noexcept;
const char* to_string(OnHeadLost what) noexcept;
const char* to_string(Launcher launcher) noexcept;
const char* to_string(ScoreOrder order) noexcept;
const char* to_string(SameFailure what) noexcept;
const char* to_string(OnHang what) noexcept;
const char* to_string(CpuBind bind) noexcept;

// A job's name where none is given: the program's file name, for an interpreter (python train.py)
// its script's, without what a name may not have; "job" if nothing is left.
std::string default_job_name(const JobSpec& spec);

}  // namespace dtrain
