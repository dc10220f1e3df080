#include "cli/preparation.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/jobs.hpp"
#include "cli/staging.hpp"
#include "launcher/cluster/node_setup.hpp"
#include "launcher/cluster/session_sync.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/mount_pack.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/wire/preparation.hpp"

namespace dtrain::cli {
namespace {

constexpr int kTries = 3;                      // when a file changes while it is read or sent
constexpr std::chrono::minutes kTakeLimit{2};  // the head looks at each of its files

// What `up` does on a worker over SSH.
wire::Preparation preparation_of(const ClusterSpec& spec) {
  wire::Preparation preparation;
  preparation.lists = setup_lists(spec, false);
  preparation.gpus = spec.ready.gpus;
  preparation.command = spec.ready.command;
  preparation.limit_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(spec.ready.timeout).count();
  return preparation;
}

StagedFiles pack(const Context& context, const ClusterSpec& spec, const std::stop_token& stop,
                 wire::Preparation& preparation, FileFactsCache& cache) {
  StagedFiles files;
  const std::vector<SyncMount> mounts = mounts_of(spec, false);
  preparation.tree.clear();
  preparation.mounts.clear();
  if (mounts.empty()) return files;
  MountPack pack = pack_mounts(mounts, cache, stop);
  for (const std::string& path : pack.skipped) {
    context.note(printable(path, false) + " is not carried");
  }
  const std::uint64_t size = pack.stats.size();
  preparation.tree = add_tree(files, pack.tree, pack.files);
  files.blobs[pack.stats_sum] = {{}, std::move(pack.stats), size};
  for (std::size_t i = 0; i < mounts.size(); ++i) {
    preparation.mounts.push_back({mounts[i].target, pack.sources[i]});
  }
  return files;
}

// Absent on a head that does not know what that is.
std::optional<nlohmann::json> preparation_on(const wire::ApiClient& client) {
  try {
    return client.get("/v1/preparation");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    return std::nullopt;
  }
}

}  // namespace

void send_preparation(const Context& context, const wire::ApiClient& client,
                      const ClusterSpec& spec, const PreparationFlags& how) {
  const auto on_head = preparation_on(client);
  wire::Preparation preparation = preparation_of(spec);
  if (!on_head) {
    if (preparation.empty() && spec.file_mounts.empty()) return;
    throw Error(ErrorCode::conflict, "the head's agent is too old to prepare machines that join")
        .with_hint("dtrain up with this dtrain brings it up to date");
  }
  std::optional<wire::Preparation> before;
  if (const nlohmann::json& given = child(*on_head, "preparation"); given.is_object()) {
    before = wire::preparation_from_json(given);
  }
  if (how.no_setup) {
    const bool is_lost = !before && !text_or(*on_head, "key").empty();
    if (is_lost) {
      throw Error(ErrorCode::conflict, "the head has lost which commands nodes that join run")
          .with_hint("dtrain up without --no-setup says it anew");
    }
    preparation = before.value_or(wire::Preparation());
  }
  // What was asked for is still to be done by nodes that were away, and by the others not anew.
  if (!how.again.empty()) {
    preparation.again = how.again;
    preparation.overwrite = true;
    preparation.from_start = !how.no_setup;
  } else if (before) {
    preparation.again = before->again;
    preparation.overwrite = before->overwrite;
    preparation.from_start = before->from_start;
  }
  FileFactsCache cache(paths::file_sums());
  for (int attempt = 1;; ++attempt) {
    try {
      const StagedFiles files = pack(context, spec, how.stop, preparation, cache);
      cache.save();
      if (!files.blobs.empty()) {
        send_files(context, client, files, !is_here(to_string(spec.provider.kind)), how.stop);
      }
      client.post("/v1/preparation", wire::to_json(preparation), kTakeLimit);
      return;
    } catch (Error& error) {
      const bool changed = error.code() == ErrorCode::conflict ||
                           error.code() == ErrorCode::failed ||
                           error.code() == ErrorCode::not_found;
      if (!changed || attempt == kTries || how.stop.stop_requested()) {
        error.while_doing("giving the head what machines that join need");
        throw;
      }
    }
  }
}

bool has_preparation(const wire::ApiClient& client) {
  const auto on_head = preparation_on(client);
  return on_head && !text_or(*on_head, "key").empty();
}

}  // namespace dtrain::cli
