#include "trainer/train/session_start.hpp"

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "trainer/core/error.hpp"
#include "trainer/train/objects.hpp"

namespace dtrain::train {
namespace {

namespace fs = std::filesystem;

// What each rank has to say, by rank.
std::vector<double> gather(Context& context, double mine) {
  std::vector<double> all(static_cast<std::size_t>(context.world_size()), 0);
  all[static_cast<std::size_t>(context.rank())] = mine;
  return context.all_reduce_sum(std::move(all));
}

// The text of one rank, for all.
std::string words_of(Context& context, std::size_t rank, const std::string& mine) {
  const std::string text = context.broadcast(mine, static_cast<int>(rank));
  return context.world_size() > 1 ? "rank " + std::to_string(rank) + ": " + text : text;
}

// Names of folders, the best first; rank 0's word, so that all take the same.
std::vector<std::string> candidates(Context& context, const ResumeFrom& from, const Warn& warn) {
  nlohmann::json names = nlohmann::json::array();
  std::string trouble;
  if (context.is_first()) {
    try {
      std::optional<fs::path> storage = from.storage;
      std::optional<std::int64_t> below;
      if (from.checkpoint) {
        names.push_back(from.checkpoint->filename().string());
        below = checkpoint_number(from.checkpoint->filename().string());
        const fs::path parent = from.checkpoint->parent_path();
        if (from.falls_back && below && parent.filename() == "checkpoints") {
          storage = parent.parent_path();
        }
      }
      if (storage) {
        std::vector<Checkpoint> all = list_checkpoints(*storage, warn);
        std::reverse(all.begin(), all.end());
        for (const Checkpoint& each : all) {
          if (below && each.manifest.number >= *below) continue;
          names.push_back(checkpoint_name(each.manifest.number));
        }
      }
    } catch (const std::exception& error) {
      trouble = error.what();
    }
  }
  agree(context, trouble.empty() ? std::nullopt : std::optional(trouble));
  return broadcast_object(context, names).get<std::vector<std::string>>();
}

void set_aside(const fs::path& folder, const Warn& warn) {
  fs::path aside = folder;
  aside += kBadSuffix;
  std::error_code error;
  fs::rename(folder, aside, error);
  if (error) {
    warn("cannot rename " + folder.string() + ": " + error.message());
  } else {
    warn("the damaged checkpoint is now " + aside.string());
  }
}

}  // namespace

void agree(Context& context, const std::optional<std::string>& trouble) {
  const std::vector<double> flags = gather(context, trouble ? 1 : 0);
  const auto found = std::find_if(flags.begin(), flags.end(), [](double f) { return f != 0; });
  if (found == flags.end()) return;
  const auto rank = static_cast<std::size_t>(found - flags.begin());
  throw Error(words_of(context, rank, trouble.value_or("")));
}

void probe_storage(Context& context, const fs::path& storage, std::chrono::milliseconds limit) {
  if (context.world_size() == 1) return;
  const fs::path folder = checkpoints_folder(storage);
  std::string name;
  if (context.is_first()) {
    std::error_code error;
    fs::create_directories(folder, error);
    try {
      name = ".probe-" + std::to_string(std::random_device()());
      FileSink(folder / name).finish();
    } catch (const std::exception&) {
      name.clear();
    }
  }
  name = context.broadcast(name);
  if (name.empty()) return;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  bool seen = false;
  for (std::chrono::milliseconds pause{2};; pause = std::min(pause * 2, limit)) {
    std::error_code error;
    seen = fs::exists(folder / name, error);
    if (seen || std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(pause);
  }
  std::optional<std::string> trouble;
  if (!seen) {
    trouble = "this rank, on node " + std::to_string(context.node_rank()) +
              ", does not see what rank 0 writes in " + folder.string() +
              ": checkpoints need a folder that all nodes share (NFS or the like); give one as "
              "the storage, or start the program with dtrain submit, which brings them together";
  }
  std::optional<Error> problem;
  try {
    agree(context, trouble);
  } catch (const Error& error) {
    problem = error;
  }
  // All have looked.
  std::error_code error;
  if (context.is_first()) fs::remove(folder / name, error);
  if (problem) throw Error(*problem);
}

std::optional<Checkpoint> choose_checkpoint(Context& context, const ResumeFrom& from,
                                            const Warn& warn) {
  const Environment& env = context.environment();
  std::vector<fs::path> damaged;
  std::string last;
  for (const std::string& name : candidates(context, from, warn)) {
    fs::path folder;
    if (from.checkpoint) {
      folder = damaged.empty() ? *from.checkpoint : from.checkpoint->parent_path() / name;
    } else {
      folder = checkpoints_folder(*from.storage) / name;
    }
    std::optional<Checkpoint> checkpoint;
    std::optional<std::string> trouble;
    std::string damage;
    try {
      // A node may have been brought the newest one only.
      if (!damaged.empty() && !fs::exists(folder)) {
        throw DamagedCheckpoint(folder.string() + ": is not there");
      }
      checkpoint = open_checkpoint(folder);
      verify_checkpoint(*checkpoint, env.local_rank, env.local_world_size);
    } catch (const DamagedCheckpoint& error) {
      damage = error.what();
    } catch (const std::exception& error) {
      trouble = error.what();
    }
    agree(context, trouble);
    const std::vector<double> flags = gather(context, damage.empty() ? 0 : 1);
    const auto found = std::find_if(flags.begin(), flags.end(), [](double f) { return f != 0; });
    if (found == flags.end()) {
      if (context.is_first() && !from.checkpoint) {
        for (const fs::path& each : damaged) set_aside(each, warn);
      }
      return checkpoint;
    }
    last = words_of(context, static_cast<std::size_t>(found - flags.begin()), damage);
    if (context.is_first()) warn("a checkpoint is damaged: " + last);
    damaged.push_back(folder);
  }
  if (damaged.empty()) return std::nullopt;
  throw Error(last + (damaged.size() > 1 ? "; so are all before it" : "") +
              ": remove it to begin anew");
}

}  // namespace dtrain::train
