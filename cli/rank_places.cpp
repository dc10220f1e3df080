#include "cli/rank_places.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/jobs.hpp"
#include "cli/stack_tree.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

// "step 12, compute, in all_reduce #1042 (4.0 MiB)"
std::string place_of(const nlohmann::json& heartbeat) {
  std::vector<std::string> parts;
  if (const long long step = number_or(heartbeat, "step", -1); step >= 0) {
    parts.push_back("step " + std::to_string(step));
  }
  if (const std::string phase = text_or(heartbeat, "phase"); !phase.empty()) parts.push_back(phase);
  const nlohmann::json& call = child(heartbeat, "collective");
  if (call.is_object()) {
    const auto done = call.find("done");
    const bool known = done != call.end() && done->is_boolean();
    std::string text = known && !done->get<bool>() ? "in " : "after ";
    text += text_or(call, "name");
    if (text.back() == ' ') text += "collective";
    text += " #" + std::to_string(number_or(call, "sequence", 0));
    if (const long long bytes = number_or(call, "bytes", 0); bytes > 0) {
      text += " (" + human_bytes(static_cast<std::uint64_t>(bytes)) + ")";
    }
    parts.push_back(std::move(text));
  }
  return parts.empty() ? "alive" : printable(join(parts, ", "), false);
}

}  // namespace

std::string rank_places(const nlohmann::json& job, std::size_t most) {
  const nlohmann::json& attempts = child(job, "attempts");
  if (!attempts.is_array() || attempts.empty()) return {};
  std::map<std::string, std::set<int>> places;
  for (const nlohmann::json& rank : child(attempts.back(), "ranks")) {
    const nlohmann::json& heartbeat = child(rank, "heartbeat");
    if (!heartbeat.is_object()) continue;
    places[place_of(heartbeat)].insert(static_cast<int>(number_or(rank, "rank", 0)));
  }
  std::vector<std::pair<std::string, std::set<int>>> lines(places.begin(), places.end());
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::string text;
  for (std::size_t i = 0; i < lines.size() && i < most; ++i) {
    text += ranks_in_words(lines[i].second) + ": " + lines[i].first + "\n";
  }
  if (lines.size() > most) {
    text += "and " + std::to_string(lines.size() - most) + " places more\n";
  }
  return text;
}

std::string gpu_places(const nlohmann::json& job, std::size_t most) {
  const nlohmann::json& attempts = child(job, "attempts");
  if (!attempts.is_array() || attempts.empty()) return {};
  std::string text;
  std::size_t shown = 0;
  std::size_t more = 0;
  for (const nlohmann::json& node : child(attempts.back(), "nodes")) {
    std::vector<std::string> gpus;
    for (const nlohmann::json& gpu : child(node, "gpus")) gpus.push_back(gpu.dump());
    if (gpus.empty()) continue;
    if (shown == most) {
      ++more;
      continue;
    }
    ++shown;
    const auto part = node.find("gpu_part");  // absent: of an older head
    const bool is_part = part != node.end() && *part != 1;
    const char* of = gpus.size() == 1 ? "of GPU " : "of each of GPUs ";
    text += "on " + text_or(node, "node") + ": " +
            (is_part ? part->dump() + " " + of : std::string(gpus.size() == 1 ? "GPU " : "GPUs ")) +
            join(gpus, ", ") + "\n";
  }
  if (more > 0) text += "and on " + std::to_string(more) + " nodes more\n";
  return text;
}

}  // namespace dtrain::cli
