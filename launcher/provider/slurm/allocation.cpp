#include "launcher/provider/slurm/allocation.hpp"

#include <array>
#include <cstdint>
#include <ctime>
#include <map>
#include <utility>

#include "launcher/core/text.hpp"

namespace dtrain::slurm {
namespace {

using std::chrono::system_clock;

constexpr std::size_t kMostNodes = 100000;  // of one allocation, when a comment is read
// Where nothing is known Slurm estimates a start in a thousand years, and behind a job without a
// limit in the year that it gives to such.
constexpr std::chrono::hours kFarAway{24 * 180};

// In this machine's time zone: "14:20", on another day with the date.
std::string about(system_clock::time_point when, system_clock::time_point now) {
  const std::time_t then = system_clock::to_time_t(when);
  const std::time_t today = system_clock::to_time_t(now);
  std::tm there{};
  std::tm here{};
  ::localtime_r(&then, &there);
  ::localtime_r(&today, &here);
  const bool same = there.tm_yday == here.tm_yday && there.tm_year == here.tm_year;
  std::array<char, 32> text{};
  const std::size_t size =
      std::strftime(text.data(), text.size(), same ? "%H:%M" : "%Y-%m-%d %H:%M", &there);
  return {text.data(), size};
}

// Its number at the end, where it has one that is written as numbers are.
std::optional<std::uint64_t> number_of(const std::string& node, std::string& before) {
  const std::size_t begin = node.find_last_not_of("0123456789") + 1;
  const std::size_t digits = node.size() - begin;
  if (digits == 0 || digits > 9 || (digits > 1 && node[begin] == '0')) return std::nullopt;
  before = node.substr(0, begin);
  return std::stoull(node.substr(begin));
}

// "node-1..node-3,other": in this order, and short, as Slurm bounds a comment.
std::string ranges_of(const std::vector<NodeId>& nodes) {
  std::string text;
  for (std::size_t i = 0; i < nodes.size();) {
    std::string name;
    const auto first = number_of(nodes[i].str(), name);
    std::size_t count = 1;
    while (first && i + count < nodes.size() &&
           nodes[i + count].str() == name + std::to_string(*first + count)) {
      ++count;
    }
    text += (text.empty() ? "" : ",") + nodes[i].str();
    if (count > 1) text += ".." + nodes[i + count - 1].str();
    i += count;
  }
  return text;
}

std::optional<std::vector<NodeId>> nodes_of(const std::string& ranges) {
  std::vector<NodeId> nodes;
  for (const std::string& range : split(ranges, ',')) {
    const std::size_t dots = range.find("..");
    if (dots == std::string::npos) {
      if (!valid_name(range) || nodes.size() == kMostNodes) return std::nullopt;
      nodes.emplace_back(range);
      continue;
    }
    std::string name;
    std::string same;
    const auto first = number_of(range.substr(0, dots), name);
    const auto last = number_of(range.substr(dots + 2), same);
    const bool is_range = first && last && name == same && *first < *last &&
                          valid_name(range.substr(0, dots)) &&
                          *last - *first < kMostNodes - nodes.size();
    if (!is_range) return std::nullopt;
    for (std::uint64_t i = *first; i <= *last; ++i) nodes.emplace_back(name + std::to_string(i));
  }
  return nodes;
}

}  // namespace

std::string comment_of(const Allocation& allocation) {
  return std::string(kCommentMark) + "cluster=" + allocation.cluster_name +
         " cluster-id=" + allocation.cluster.str() + " type=" + allocation.type +
         " launch=" + allocation.launch + " boot=" + allocation.boot +
         " nodes=" + ranges_of(allocation.nodes);
}

std::optional<Allocation> allocation_of(std::string_view comment) {
  if (!comment.starts_with(kCommentMark)) return std::nullopt;
  std::map<std::string, std::string> values;
  for (const std::string& word : split(comment, ' ')) {
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) values[word.substr(0, equals)] = word.substr(equals + 1);
  }
  Allocation allocation{values["cluster"], ClusterId(values["cluster-id"]),
                        values["type"],    values["launch"],
                        values["boot"],    {}};
  // It names a folder.
  const bool is_folder = allocation.boot.empty() || valid_name(allocation.boot);
  if (allocation.cluster_name.empty() || !is_folder) return std::nullopt;
  auto nodes = nodes_of(values["nodes"]);
  if (!nodes) return std::nullopt;
  allocation.nodes = std::move(*nodes);
  return allocation;
}

Standing standing_of(const Job& job, system_clock::time_point now) {
  static const std::map<std::string, Standing> standings{
      {"RUNNING", {MachineState::running, ""}},
      {"RESIZING", {MachineState::running, ""}},
      {"SIGNALING", {MachineState::running, ""}},
      {"SUSPENDED", {MachineState::running, "is suspended"}},
      {"STOPPED", {MachineState::running, "is stopped"}},
      {"STAGE_OUT", {MachineState::stopping, ""}},
      {"COMPLETING", {MachineState::stopping, ""}},
      {"COMPLETED", {MachineState::gone, "has ended"}},
      {"CANCELLED", {MachineState::gone, "was cancelled"}},
      {"FAILED", {MachineState::gone, "has failed"}},
      {"TIMEOUT", {MachineState::gone, "reached its time limit"}},
      {"DEADLINE", {MachineState::gone, "reached its deadline"}},
      {"PREEMPTED", {MachineState::gone, "was preempted", true}},
      {"NODE_FAIL", {MachineState::gone, "lost a node"}},
      {"BOOT_FAIL", {MachineState::gone, "got a node that does not boot"}},
      {"OUT_OF_MEMORY", {MachineState::gone, "ran out of memory"}},
      {"REVOKED", {MachineState::gone, "went to another cluster of Slurm's"}},
  };
  const std::string name = "Slurm job " + job.id;
  if (const auto found = standings.find(job.state); found != standings.end()) {
    Standing standing = found->second;
    if (!standing.reason.empty()) standing.reason = name + " " + standing.reason;
    return standing;
  }
  // PENDING, CONFIGURING, and whatever else there will be.
  std::string reason = "waits";
  if (!job.partition.empty()) reason += " in partition " + printable(job.partition, false);
  if (job.state != "PENDING") {
    reason += ": " + printable(job.state, false);
  } else if (!job.reason.empty() && job.reason != "None") {
    reason += ": " + printable(job.reason, false);
  }
  if (job.start && *job.start > now && *job.start - now < kFarAway) {
    reason += ", starts about " + about(*job.start, now);
  }
  return {MachineState::pending, reason};
}

}  // namespace dtrain::slurm
