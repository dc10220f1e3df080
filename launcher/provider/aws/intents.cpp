#include "launcher/provider/aws/intents.hpp"

#include <algorithm>

#include "launcher/core/error.hpp"
#include "launcher/wire/fields.hpp"

namespace dtrain::aws {
namespace {

constexpr const char* kSuffix = ".json";

}  // namespace

void fields(wire::Is<Intent> auto& m, auto&& f) {
  f("token", m.token, "cluster", m.cluster, "type", m.type, "zone", m.zone, "launch", m.launch,
    "head", m.head, "joins", wire::or_default(m.joins), "nodes", m.nodes, "asked", m.asked, "ids",
    m.ids);
}

void Intents::write(const Intent& intent) {
  make_folders(folder_);
  write_file_atomic(folder_ / (intent.token + kSuffix), wire::dump(wire::written(intent)));
}

void Intents::remove(const std::string& token) {
  std::error_code error;
  fs::remove(folder_ / (token + kSuffix), error);
  if (error) throw errno_error("cannot remove " + printable_path(folder_ / token), error.value());
}

std::vector<Intent> Intents::all() const {
  std::vector<Intent> intents;
  // A folder that cannot be listed may hold notes: nothing is asked for twice.
  for (const fs::path& file : entries_of(folder_)) {
    if (file.extension() != kSuffix) continue;
    while_doing("reading a note of instances that were asked for, " + printable_path(file), [&] {
      wire::read(wire::parse_json(read_file(file), "it"), intents.emplace_back());
    });
  }
  std::sort(intents.begin(), intents.end(),
            [](const Intent& a, const Intent& b) { return a.asked < b.asked; });
  return intents;
}

}  // namespace dtrain::aws
