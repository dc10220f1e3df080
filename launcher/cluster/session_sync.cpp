#include "launcher/cluster/session_sync.hpp"

#include <utility>

#include "launcher/core/error.hpp"

namespace dtrain {
namespace {

// The agent hands its stream over to serve_sync() until that has had its say.
template <typename Body>
auto over(AgentSession& session, Body&& body) {
  try {
    return body(session.begin("sync"));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout) {
      session.give_up();
    }
    throw;
  }
}

}  // namespace

std::vector<SyncMount> mounts_of(const ClusterSpec& spec, bool overwrite) {
  std::vector<SyncMount> mounts;
  for (const FileMount& each : spec.file_mounts) {
    SyncMount mount;
    mount.target = each.remote;
    mount.source = each.local;
    mount.exclude = spec.rsync_exclude;
    mount.filter_files = spec.rsync_filter;
    mount.overwrite = overwrite;
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

SyncOutcome sync_to(AgentSession& session, const std::vector<SyncMount>& mounts,
                    const SendOptions& options) {
  return over(session, [&](FramedStream& stream) {
    request_receive(stream);
    return send_trees(stream, mounts, options);
  });
}

fs::path fetch_from(AgentSession& session, const std::vector<std::string>& paths,
                    const fs::path& folder) {
  remove_tree(folder);
  make_folders(folder);
  std::vector<SyncMount> mounts;
  ReceiveOptions here;
  here.home = folder;
  here.state = folder / ".sync";
  for (std::size_t i = 0; i < paths.size(); ++i) {
    SyncMount mount;
    mount.source = paths[i];
    mounts.push_back(std::move(mount));
    here.targets.push_back(folder / std::to_string(i));
  }
  over(session, [&](FramedStream& stream) {
    request_send(stream, mounts, false);
    return receive_trees(stream, here);
  });
  return folder;
}

}  // namespace dtrain
