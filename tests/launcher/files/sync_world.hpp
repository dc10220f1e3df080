#pragma once

#include <string>
#include <vector>

#include "launcher/files/sync.hpp"
#include "tests/support/temporary_folder.hpp"

namespace dtrain::testing {

// A source here, a home and a state folder there, and a socket pair between them.
class SyncWorld {
 public:
  SyncWorld();

  fs::path source() const { return folder_ / "source"; }
  fs::path home() const { return folder_ / "home"; }
  fs::path state() const { return folder_ / "state"; }
  fs::path target() const { return home() / "x"; }

  // Files of the source; folders above are made.
  void write(const std::string& path, const std::string& content) const;
  // Files of the target.
  void write_there(const std::string& path, const std::string& content) const;
  std::string read_there(const std::string& path) const;

  // Syncs source to ~/x, or these mounts. Both ends' outcomes must be equal. Throws the sender's
  // Error.
  SyncOutcome sync();
  SyncOutcome sync(const std::vector<SyncMount>& mounts);

  SyncMount mount;  // what sync() sends
  SendOptions sending;
  ReceiveOptions receiving;

 private:
  TemporaryFolder folder_;
};

void write_file(const fs::path& path, const std::string& content);
std::string slurp(const fs::path& path);
// Everything below a folder as text: kinds, modes, sizes, mtimes, sums, targets of links.
std::string picture(const fs::path& folder, bool times = true);
// The names of the staging folders and of files beside them that a sync left.
std::vector<std::string> left_overs(const fs::path& folder);

}  // namespace dtrain::testing
