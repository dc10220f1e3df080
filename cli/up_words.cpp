#include "cli/up_words.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/render.hpp"
#include "launcher/cluster/counted.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/provider.hpp"

namespace dtrain::cli {
namespace {

const char* action_name(UpAction action) {
  switch (action) {
    case UpAction::nothing:
      return "none";
    case UpAction::wait:
      return "waited";
    case UpAction::start_watch:
      return "started";
    case UpAction::build:
      return "built";
    case UpAction::replace:
    case UpAction::change:
      return "changed";
    case UpAction::plan:
      return "planned";
    case UpAction::refuse:
      return "refused";
    case UpAction::decline:
      return "declined";
  }
  return "none";
}

bool any(const ClusterPlan& plan, bool (*has)(const Machine&)) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(),
                     [&](const NodePlan& each) { return has(each.machine); });
}

bool is_made(const NodePlan& plan) {
  return plan.action == NodeAction::create || plan.action == NodeAction::replace;
}

bool is_paid_for(const NodePlan& plan) {
  return is_made(plan) || plan.action == NodeAction::start;
}

nlohmann::json plan_json(const ClusterPlan& plan) {
  nlohmann::json nodes = nlohmann::json::array();
  for (const NodePlan& each : plan.nodes) {
    const Machine& machine = each.machine;
    nodes.push_back({{"node", machine.node.str()},
                     {"type", machine.type},
                     {"machine", machine.id},
                     {"state", to_string(machine.state)},
                     {"zone", machine.zone},
                     {"price", machine.price ? nlohmann::json(*machine.price) : nlohmann::json()},
                     {"action", to_string(each.action)},
                     {"reason", each.reason}});
  }
  return nodes;
}

}  // namespace

void tell_nodes(const Context& context, const UpReport& report) {
  for (const std::string& warning : report.warnings) context.note("warning: " + warning);
  for (const NodeUp& node : report.each) {
    for (const std::string& warning : node.warnings) {
      context.note(node.machine.node.str() + ": " + warning);
    }
  }
  for (const NodeUp& node : report.each) {
    if (!node.error) continue;
    for (const std::string& line : node.tail) context.warn("  " + line);
    if (!context.globals.json) {
      write_all(STDERR_FILENO,
                error_text(*node.error, context.terminal.color_err, context.globals.verbose));
    }
  }
  for (const AskedType& type : report.asked) {
    if (!type.error || context.globals.json) continue;
    write_all(STDERR_FILENO,
              error_text(*type.error, context.terminal.color_err, context.globals.verbose));
  }
  if (report.action == UpAction::plan) return;
  for (const std::string& removed : report.removed) context.note(removed);
}

std::string cost_line(const ClusterPlan& plan) {
  constexpr double kHoursOfMonth = 730;
  std::size_t made = 0;
  std::size_t started = 0;
  std::size_t unpriced = 0;
  double hour = 0;
  for (const NodePlan& each : plan.nodes) {
    if (!is_paid_for(each)) continue;
    ++(is_made(each) ? made : started);
    unpriced += each.machine.price ? 0 : 1;
    hour += each.machine.price.value_or(0);
  }
  if (made + started == 0) return {};
  std::string line = made == 0 ? "" : counted(made, "new machine");
  if (made > 0 && started > 0) line += " and ";
  if (started > 0) line += counted(started, "machine") + " started";
  made += started;
  if (unpriced < made) {
    line += ": " + human_dollars(hour) + " an hour, " + human_dollars(hour * kHoursOfMonth) +
            " a month";
    if (unpriced > 0) line += "; no price is known of " + std::to_string(unpriced);
  } else {
    line += "; no prices are known";
  }
  return line;
}

std::string machines_table(const ClusterPlan& plan, bool color) {
  const bool types = any(plan, [](const Machine& each) { return !each.type.empty(); });
  const bool zones = any(plan, [](const Machine& each) { return !each.zone.empty(); });
  const bool prices = any(plan, [](const Machine& each) { return each.price.has_value(); });
  const auto row = [&](Cell node, Cell type, Cell action, Cell zone, Cell price, Cell why) {
    std::vector<Cell> cells{std::move(node)};
    if (types) cells.push_back(std::move(type));
    cells.push_back(std::move(action));
    if (zones) cells.push_back(std::move(zone));
    if (prices) cells.push_back(std::move(price));
    cells.push_back(std::move(why));
    return cells;
  };
  std::vector<std::string> header;
  for (Cell& cell : row("NODE", "TYPE", "MACHINE", "ZONE", "AN HOUR", "WHY")) {
    header.push_back(std::move(cell.text));
  }
  std::vector<std::vector<Cell>> rows;
  for (const NodePlan& each : plan.nodes) {
    const Machine& machine = each.machine;
    const bool goes = each.action == NodeAction::release || each.action == NodeAction::replace;
    rows.push_back(
        row(machine.node.empty() ? "(new)" : machine.node.str(), machine.type,
            goes ? Cell(to_string(each.action), Color::yellow) : Cell(to_string(each.action)),
            machine.zone, machine.price ? human_dollars(*machine.price) : "", each.reason));
  }
  return table(header, rows, color);
}

void print_plan(const Context& context, const ProviderTraits& traits, const UpReport& report) {
  std::vector<std::vector<Cell>> rows;
  for (const NodeUp& node : report.each) {
    std::string name = node.machine.node.str();
    if (node.error) rows.push_back({name, Cell("failed", Color::red), node.error->message()});
    if (!node.error && node.steps.empty()) rows.push_back({name, "nothing", ""});
    for (const NodeUp::Step& step : node.steps) {
      rows.push_back({std::exchange(name, ""), step.step, step.text});
    }
  }
  context.print(machines_table(report.plan, context.terminal.color_out));
  for (const AskedType& type : report.asked) {
    const bool grows = type.most > type.wanted;
    context.print("the head asks for " + std::to_string(type.wanted) + " of type " + type.type +
                  (grows ? ", and when jobs wait for up to " + std::to_string(type.most) : "") +
                  "\n");
  }
  const std::string cost = cost_line(report.plan);
  if (!cost.empty() && traits.costs) context.print(cost + "\n");
  if (report.cost && !report.cost->refused.empty()) {
    context.print(paint("up would refuse this: " + report.cost->refused, Color::red,
                        context.terminal.color_out) +
                  "\n");
  } else if (report.cost) {
    context.print("all machines: " + human_dollars(report.cost->per_hour) +
                  " an hour, max_cost_per_hour is " + human_dollars(report.cost->most) + "\n");
  }
  context.print("\n" + table({"NODE", "WOULD DO", ""}, rows, context.terminal.color_out));
}

nlohmann::json report_json(const ClusterSpec& spec, const UpReport& report) {
  nlohmann::json nodes = nlohmann::json::array();
  for (const Machine& machine : report.nodes) {
    nodes.push_back({{"node", machine.node.str()},
                     {"address", machine.address},
                     {"root", machine.root.string()},
                     {"state", "ready"}});
  }
  nlohmann::json json{{"cluster", report.name},
                      {"id", report.id.str()},
                      {"provider", to_string(spec.provider.kind)},
                      {"action", action_name(report.action)},
                      {"plan", plan_json(report.plan)},
                      {"nodes", nodes},
                      {"state_folder", report.state.string()},
                      {"warnings", report.warnings}};
  if (report.cost) {
    json["cost"] = {{"per_hour", report.cost->per_hour},
                    {"max_per_hour", report.cost->most},
                    {"refused", report.cost->refused}};
  }
  if (report.each.empty()) return json;
  nlohmann::json each = nlohmann::json::array();
  for (const NodeUp& node : report.each) {
    nlohmann::json steps = nlohmann::json::array();
    for (const NodeUp::Step& step : node.steps) {
      steps.push_back({{"step", step.step}, {"text", step.text}});
    }
    each.push_back({{"node", node.machine.node.str()},
                    {"steps", steps},
                    {"warnings", node.warnings},
                    {"last_lines", node.tail},
                    {"error", node.error ? error_json(*node.error)["error"] : nlohmann::json()}});
  }
  json["each"] = std::move(each);
  nlohmann::json asked = nlohmann::json::array();
  for (const AskedType& type : report.asked) {
    nlohmann::json ready = nlohmann::json::array();
    for (const NodeId& node : type.ready) ready.push_back(node.str());
    asked.push_back({{"type", type.type},
                     {"wanted", type.wanted},
                     {"ready", std::move(ready)},
                     {"error", type.error ? error_json(*type.error)["error"] : nlohmann::json()}});
  }
  json["asked"] = std::move(asked);
  json["removed"] = report.removed;
  json["complete"] = report.complete;
  return json;
}

}  // namespace dtrain::cli
