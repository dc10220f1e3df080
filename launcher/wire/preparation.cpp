#include "launcher/wire/preparation.hpp"

#include "launcher/files/sha256.hpp"
#include "launcher/wire/setup_list.hpp"

namespace dtrain::wire {

BOOST_DESCRIBE_STRUCT(Preparation::Mount, (), (target, source))
void fields(Is<Preparation> auto& m, auto&& f) {
  f("tree", if_set(m.tree), "mounts", if_set(m.mounts), "lists", if_set(m.lists), "gpus",
    if_set(m.gpus), "command", if_set(m.command), "limit_ms", within(m.limit_ms, 1, 86400000),
    "again", if_set(m.again), "overwrite", if_set(m.overwrite), "from_start", if_set(m.from_start));
}

nlohmann::json to_json(const Preparation& preparation) {
  return written(preparation);
}

Preparation preparation_from_json(const nlohmann::json& json) {
  Preparation preparation;
  read(json, preparation);
  if (preparation.tree.empty() != preparation.mounts.empty()) {
    throw Error(ErrorCode::invalid, "\"tree\" goes with \"mounts\"");
  }
  if (!preparation.tree.empty() && !is_sha256(preparation.tree)) {
    throw Error(ErrorCode::invalid, "\"tree\" is no sum");
  }
  for (const Preparation::Mount& mount : preparation.mounts) {
    if (!is_plain_relative_path(mount.source)) {
      throw Error(ErrorCode::invalid, "\"source\" is no path below a tree");
    }
  }
  return preparation;
}

std::string key_of(Preparation preparation) {
  preparation.overwrite = false;
  preparation.from_start = false;
  Sha256 sum;
  sum.add(dump(to_json(preparation)));
  return sum.hex();
}

std::string preparation_words(const std::string& text) {
  constexpr std::size_t kMost = 300;
  return printable(text.substr(0, kMost), false);
}

}  // namespace dtrain::wire
