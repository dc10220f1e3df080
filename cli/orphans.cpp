#include "cli/orphans.hpp"

#include <signal.h>

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/render.hpp"
#include "cli/signals.hpp"
#include "launcher/core/error.hpp"
#include "launcher/provider/provider.hpp"

namespace dtrain::cli {
namespace {

std::string now(const Belonging& thing) {
  return thing.gone ? "gone" : thing.kept ? "kept" : "there";
}

void show(const Context& context, const std::vector<Orphan>& orphans) {
  std::vector<std::vector<Cell>> rows;
  for (const auto& [cluster, thing] : orphans) {
    const bool over = thing.gone || thing.kept;
    rows.push_back({cluster, thing.what, thing.id,
                    Cell(now(thing), over ? Color::green : Color::red), thing.note});
  }
  context.print(table({"CLUSTER", "WHAT", "ID", "NOW", ""}, rows, context.terminal.color_out));
}

nlohmann::json to_json(const std::vector<Orphan>& orphans, const std::string& region,
                       bool complete) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [cluster, thing] : orphans) {
    rows.push_back({{"cluster", cluster},
                    {"what", thing.what},
                    {"id", thing.id},
                    {"now", now(thing)},
                    {"note", thing.note}});
  }
  return {{"region", region}, {"complete", complete}, {"rows", rows}};
}

}  // namespace

int take_orphans_away(Context& context, const std::string& region, bool yes) {
  const auto all = providers();
  const auto entry = std::find_if(
      all.begin(), all.end(), [](const ProviderEntry& each) { return each.orphans != nullptr; });
  Signals signals({SIGINT, SIGTERM});
  const auto there = entry->orphans(region);
  std::vector<Orphan> orphans;
  {
    const LetThrough through(signals);  // nothing is done yet
    orphans = there->find();
  }
  const auto to_go = std::count_if(orphans.begin(), orphans.end(),
                                   [](const Orphan& each) { return !each.thing.kept; });
  if (to_go > 0 && !yes) {
    if (!context.globals.json) show(context, orphans);
    const LetThrough through(signals);
    const auto answer = context.ask("Give these back, but for what is kept?");
    if (!answer) {
      throw Error(ErrorCode::conflict, std::to_string(to_go) + " orphans would be given back")
          .with_hint("dtrain down --all-orphans --region " + region + " -y if that is meant");
    }
    if (!*answer) {
      context.note("left as it is");
      return 1;
    }
    // Meanwhile some may have got a head.
    const std::vector<Orphan> still = there->find();
    std::erase_if(orphans, [&](const Orphan& each) {
      return std::none_of(still.begin(), still.end(), [&](const Orphan& other) {
        return other.thing.what == each.thing.what && other.thing.id == each.thing.id;
      });
    });
  }
  if (to_go > 0) {
    context.note("giving them back");
    const StopOnSignal stop(signals);
    there->take_away(orphans, stop.token());
  }
  const bool complete = std::all_of(orphans.begin(), orphans.end(), [](const Orphan& each) {
    return each.thing.gone || each.thing.kept;
  });
  if (context.globals.json) {
    context.print_json(to_json(orphans, region, complete));
  } else if (orphans.empty()) {
    if (!context.globals.quiet) context.print("there are no orphans in " + region + "\n");
  } else if (!context.globals.quiet || !complete) {
    show(context, orphans);
  }
  return complete ? 0 : 1;
}

}  // namespace dtrain::cli
