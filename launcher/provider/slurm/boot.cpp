#include "launcher/provider/slurm/boot.hpp"

#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/slurm/client.hpp"

namespace dtrain::slurm {
namespace {

constexpr std::chrono::milliseconds kFileLimit{60000};
// The last lines of each folder's log, behind its name.
constexpr const char* kTellLogs =
    R"sh(for b; do echo "$b"; tail -n 3 -- "$b/log" 2>/dev/null | sed 's/^/|/'; done)sh";
// "NAME SIZE" and so many bytes, again and again.
constexpr const char* kUnpack =
    R"sh(umask 077; mkdir -p "$0" && cd "$0" && while read -r name size; do head -c "$size" >"$name" || exit; done)sh";

}  // namespace

BootFolders::BootFolders(std::shared_ptr<Transport> login_node, fs::path base)
    : login_node_(std::move(login_node)), base_(std::move(base)) {
  if (!base_.is_absolute()) {
    throw Error(ErrorCode::invalid, base_.string() + " is no absolute path, as nodes know it");
  }
}

void BootFolders::write(const std::string& folder, const std::vector<std::string>& files) {
  std::string packed;
  for (std::size_t i = 0; i < files.size(); ++i) {
    packed += std::to_string(i) + " " + std::to_string(files[i].size()) + "\n" + files[i];
  }
  const std::string path = of(folder).string();
  try {
    run_or_throw(*login_node_, {"sh", "-c", kUnpack, path}, packed, kFileLimit,
                 "writing what nodes start with to " + path);
  } catch (const Error&) {
    remove({folder});
    throw;
  }
}

void BootFolders::remove(const std::vector<std::string>& folders) noexcept {
  try {
    in_batches(folders, [&](std::span<const std::string> some) { run("rm -rf -- \"$@\"", some); });
  } catch (const std::exception&) {
  }
}

std::vector<std::string> BootFolders::older_than(std::chrono::minutes age) {
  const Captured old =
      login_node_->run({"find", base_.string(), "-mindepth", "1", "-maxdepth", "1", "-name",
                        "boot-*", "-mmin", "+" + std::to_string(age.count())},
                       {}, kFileLimit);
  std::vector<std::string> folders;
  for (const std::string& line : split(old.out, '\n')) {
    if (!line.empty()) folders.push_back(fs::path(line).filename().string());
  }
  return folders;
}

Captured BootFolders::run(const std::string& command, std::span<const std::string> folders) {
  std::vector<std::string> argv = {"sh", "-c", "cd \"$0\" && " + command, base_.string()};
  argv.insert(argv.end(), folders.begin(), folders.end());
  return login_node_->run(argv, {}, kFileLimit);
}

std::map<std::string, std::string> BootFolders::last_words(
    const std::vector<std::string>& folders) {
  std::map<std::string, std::string> words;
  try {
    in_batches(folders, [&](std::span<const std::string> some) {
      std::string folder;
      for (const std::string& line : split(run(kTellLogs, some).out, '\n')) {
        if (line.starts_with('|') && line.size() > 1) {
          std::string& said = words[folder];
          said += (said.empty() ? "" : "; ") + printable(line.substr(1), false);
        } else if (!line.empty()) {
          folder = line;
        }
      }
    });
  } catch (const Error&) {  // that they are over counts more
  }
  return words;
}

}  // namespace dtrain::slurm
