#include "cli/staging.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/jobs.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/own_programs.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/stop.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/blob_stream.hpp"
#include "launcher/files/ignore.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLarge = std::uint64_t{1} << 30;  // bytes of a workdir that is remarkable
constexpr std::size_t kManyFiles = 100'000;               // as is this number of files
constexpr std::uint64_t kWorthSaying = std::uint64_t{8} << 20;  // bytes that take a moment to send
constexpr std::size_t kQueue = std::size_t{4} << 20;            // bytes on their way
constexpr std::size_t kOffer = 50'000;                          // blobs of one offer
constexpr std::chrono::seconds kSilence{120};
constexpr std::chrono::milliseconds kShowEvery{200};
constexpr std::chrono::milliseconds kLookEvery{200};  // whether what is waited for is still wanted

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_program(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

// `path` relative to `folder`, if it lies below it.
std::optional<std::string> below(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_normal().lexically_relative(folder.lexically_normal());
  if (relative.empty() || relative.is_absolute() || *relative.begin() == ".." || relative == ".") {
    return std::nullopt;
  }
  return relative.string();
}

// The first word of a line for the shell, if it is a plain one.
std::string first_word(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(" \t\n");
  if (begin == std::string::npos) return {};
  const std::size_t end = line.find_first_not_of(
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+-@%", begin);
  if (end != std::string::npos && line[end] != ' ' && line[end] != '\t' && line[end] != '\n') {
    return {};
  }
  return line.substr(begin, end == std::string::npos ? end : end - begin);
}

// Without it the nodes keep no stacks of a hang, which says so then.
void add_profiler(const Context& context, StagedFiles& files, JobContent& content,
                  FileFactsCache& cache) {
  try {
    std::map<std::string, fs::path> sources;
    const ContentTree tree = bundle_tree(profiler_plan(cache), true, cache, sources);
    content.profiler_tree = add_tree(files, tree, sources);
    content.size += total_size(tree);
  } catch (const Error& error) {
    if (context.globals.verbose || error.code() != ErrorCode::not_found) {
      context.note("stacks of a hang will not be kept: " + error.message());
    }
  }
}

// A folder that nobody means to send whole.
bool is_home_or_root(const fs::path& folder) {
  const std::string home = environment("HOME");
  const fs::path plain = (folder / "").lexically_normal();
  return plain == "/" || (!home.empty() && plain == (fs::path(home) / "").lexically_normal());
}

Snapshot snapshot_of(const Context& context, const JobSpec& spec,
                     const std::optional<std::string>& program, FileFactsCache& cache,
                     const std::stop_token& stop) {
  const fs::path folder = spec.workdir;
  std::error_code failed;
  if (!fs::is_directory(folder, failed)) {
    throw Error(ErrorCode::not_found, "there is no folder " + printable(spec.workdir, false))
        .with_hint("workdir is the folder that goes to the nodes");
  }
  if (is_home_or_root(folder)) {
    context.note("the workdir is " + spec.workdir +
                 ", which is not sent: the ranks start in an empty folder");
    return {};
  }
  IgnoreList ignored;
  if (const auto text = read_file_if_there(folder / ".dtrainignore", std::size_t{1} << 20)) {
    ignored = IgnoreList(*text, "");
  }
  SnapshotOptions options;
  options.stop = stop;
  // Keys of clusters, which go to nobody, and files that dtrain writes while it sends them.
  const auto own =
      below(fs::weakly_canonical(paths::state_home(), failed), fs::canonical(folder, failed));
  options.ignore = [&ignored, &own](const std::string& path, bool is_folder) {
    return is_version_control(path, is_folder) || (own && path == *own) ||
           ignored.judge(path, is_folder) == IgnoreList::Verdict::out;
  };
  if (program) options.always.push_back(*program);
  Snapshot snapshot = take_snapshot(folder, options, cache);
  for (const std::string& path : snapshot.skipped) {
    context.note(printable(path, false) + " is no file or folder, and stays behind");
  }
  const std::size_t count = file_count(snapshot.tree);
  if (snapshot.size > kLarge || count > kManyFiles) {
    context.note("the workdir " + spec.workdir + " has " + human_bytes(snapshot.size) + " in " +
                 std::to_string(count) +
                 " files, and all of it goes to each node; .dtrainignore leaves things out");
  }
  return snapshot;
}

// A line that says how far it is, on a terminal.
class Progress {
 public:
  Progress(const Context& context, std::uint64_t total)
      : shown_(total >= kWorthSaying && context.terminal.err && !context.terminal.dumb &&
               !context.globals.quiet && !context.globals.json),
        total_(total),
        begin_(std::chrono::steady_clock::now()),
        last_(begin_) {}
  ~Progress() {
    if (printed_) write_shown(STDERR_FILENO, "\r\033[K");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void at(std::uint64_t done) {
    const auto now = std::chrono::steady_clock::now();
    if (!shown_ || now - last_ < kShowEvery) return;
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const auto rate = static_cast<std::uint64_t>(static_cast<double>(done) / seconds);
    std::string line = "sending " + human_bytes(done) + " of " + human_bytes(total_) + ", " +
                       human_bytes(rate) + "/s";
    if (rate > 0) {
      line += ", " +
              human_duration(std::chrono::seconds((total_ - std::min(total_, done)) / rate)) +
              " left";
    }
    write_shown(STDERR_FILENO, "\r\033[K" + line);
    printed_ = true;
  }

 private:
  bool shown_;
  bool printed_ = false;
  std::uint64_t total_;
  Monotonic begin_;
  Monotonic last_;
};

// The next text frame; its error, if it is one, is thrown.
json next_answer(wire::ApiStream& stream, const std::stop_token& stop) {
  const auto until = std::chrono::steady_clock::now() + kSilence;
  while (true) {
    throw_if_stopped(stop);
    const auto now = std::chrono::steady_clock::now();
    const auto event = stream.wait(std::min(until, now + kLookEvery));
    if (event.what == wire::ApiStream::What::timeout) {
      if (now < until) continue;
      throw Error(ErrorCode::timeout, "the head says nothing while files are sent");
    }
    if (event.what == wire::ApiStream::What::closed) {
      throw Error(ErrorCode::unreachable, "the head hung up while files were sent");
    }
    if (event.what != wire::ApiStream::What::text) continue;
    json answer = wire::parse_json(stream.data(), "the head's answer", std::size_t{64} << 20);
    if (answer.is_object() && answer.contains("error")) throw wire::error_from_json(answer);
    return answer;
  }
}

}  // namespace

bool sends_files(const wire::ApiClient& client, const std::string& cluster) {
  if (environment("DTRAIN_STAGE") == "1") return true;
  if (const auto state = load_cluster(cluster)) {
    return !is_here(state->provider);
  }
  return !is_here(text_or(child(client.get("/v1/status"), "cluster"), "provider"));
}

BundleOptions bundle_options() {
  BundleOptions options;
  options.library_path = environment("LD_LIBRARY_PATH");
  return options;
}

BundlePlan profiler_plan(FileFactsCache& cache) {
  BundlePlan plan = plan_bundle(find_profiler(), bundle_options(), cache);
  if (!plan.missing.empty()) {
    throw Error(ErrorCode::not_found,
                "dtrain-profiler needs what is not here: " + join(plan.missing, ", "));
  }
  return plan;
}

std::optional<fs::path> program_of(const JobSpec& spec, const std::string& path_variable) {
  if (spec.command.empty()) return std::nullopt;
  const std::string word = spec.shell ? first_word(spec.command.front()) : spec.command.front();
  if (word.empty()) return std::nullopt;
  if (word.find('/') != std::string::npos) {
    const fs::path path = (fs::path(spec.workdir) / word).lexically_normal();
    return is_program(path) ? std::optional(path) : std::nullopt;
  }
  for (const std::string& folder : split(path_variable, ':')) {
    if (folder.empty() || folder.front() != '/') continue;
    if (is_program(fs::path(folder) / word)) return fs::path(folder) / word;
  }
  return std::nullopt;
}

std::string add_tree(StagedFiles& files, const ContentTree& tree,
                     const std::map<std::string, fs::path>& sources) {
  for (const ContentEntry& entry : tree.entries) {
    if (entry.kind != ContentEntry::Kind::file) continue;
    const auto source = sources.find(entry.sha256);
    if (source != sources.end()) files.blobs[entry.sha256] = {source->second, {}, entry.size};
  }
  std::string text = to_text(tree);
  Sha256 sum;
  sum.add(text);
  std::string name = sum.hex();
  const std::uint64_t size = text.size();
  files.blobs[name] = {{}, std::move(text), size};
  return name;
}

StagedFiles stage_job(const Context& context, JobSpec& spec, FileFactsCache& cache,
                      const std::stop_token& stop) {
  StagedFiles files;
  JobContent content;
  const std::optional<fs::path> program = program_of(spec, environment("PATH"));
  std::optional<std::string> inside;
  // What a link leads to outside is not in the workdir.
  std::error_code none;
  if (program && below(fs::canonical(*program, none), fs::canonical(spec.workdir, none))) {
    inside = below(*program, spec.workdir);
  }

  const Snapshot workdir = snapshot_of(context, spec, inside, cache, stop);
  content.workdir_tree = add_tree(files, workdir.tree, workdir.files);
  content.size = workdir.size;
  if (inside && !spec.shell && fs::path(spec.command.front()).is_absolute()) {
    spec.command.front() = "./" + *inside;
  }

  if (program && spec.bundle == BundleMode::automatic) {
    const BundlePlan plan = plan_bundle(*program, bundle_options(), cache);
    for (const std::string& missing : plan.missing) {
      context.note("not found here, so the nodes must have it: " + printable(missing, false));
    }
    // In the workdir it goes along with that; for a line of the shell its path stands as it is.
    const bool with_program = plan.ours && !inside && !spec.shell;
    if (plan.glibc) {
      content.glibc = plan.glibc->str();
      content.glibc_of = printable(plan.glibc_of, false);
    }
    if (plan.wanted || with_program) {
      std::map<std::string, fs::path> sources;
      const ContentTree tree = bundle_tree(plan, with_program, cache, sources);
      content.bundle_tree = add_tree(files, tree, sources);
      content.size += total_size(tree);
      if (with_program) content.program = "bin/" + plan.program.filename().string();
    }
  }
  if (spec.on_hang != OnHang::nothing) add_profiler(context, files, content, cache);
  cache.save();
  spec.content = std::move(content);
  return files;
}

void send_files(const Context& context, const wire::ApiClient& client, const StagedFiles& files,
                bool zstd, const std::stop_token& stop) {
  wire::ApiStream stream = client.open("/v1/content/upload");
  auto next = files.blobs.begin();
  while (next != files.blobs.end()) {
    json blobs = json::array();
    for (std::size_t i = 0; i < kOffer && next != files.blobs.end(); ++i, ++next) {
      blobs.push_back({{"sha256", next->first}, {"size", next->second.size}});
    }
    json offer;
    offer["type"] = "offer";
    offer["zstd"] = zstd;
    offer["blobs"] = std::move(blobs);
    stream.send_text(wire::dump(offer));
    const json wanted = next_answer(stream, stop);
    std::vector<BlobSender::Source> sources;
    std::uint64_t total = 0;
    for (const json& want : wire::member(wanted, "blobs")) {
      const std::string sha256 = wire::get_string(want, "sha256");
      const auto found = files.blobs.find(sha256);
      if (found == files.blobs.end()) {
        throw Error(ErrorCode::denied, "the head asks for a file that was not offered");
      }
      const StagedFiles::Blob& blob = found->second;
      BlobSender::Source source;
      source.sha256 = sha256;
      source.file = blob.file;
      source.text = blob.text;
      source.size = blob.size;
      source.offset = static_cast<std::uint64_t>(
          wire::get_int(want, "offset", 0, static_cast<std::int64_t>(blob.size)));
      total += source.size - source.offset;
      sources.push_back(std::move(source));
    }
    if (sources.empty()) continue;
    const auto begin = std::chrono::steady_clock::now();
    const std::size_t count = sources.size();
    Progress progress(context, total);
    BlobSender sender(std::move(sources), zstd);
    for (std::string piece = sender.next(); !piece.empty(); piece = sender.next()) {
      throw_if_stopped(stop);
      stream.send_binary(std::move(piece));
      // Its error, or its end.
      if (!stream.send_below(kQueue, kSilence)) (void)next_answer(stream, stop);
      progress.at(sender.read());
    }
    stream.send_text(R"({"type":"end"})");
    (void)next_answer(stream, stop);
    if (total >= kWorthSaying) {
      context.note("sent " + human_bytes(total) + " in " + std::to_string(count) +
                   (count == 1 ? " file, " : " files, ") +
                   human_duration(std::chrono::steady_clock::now() - begin));
    }
  }
}

}  // namespace dtrain::cli
