#include "agent/link/content_exchange.hpp"

#include <fcntl.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::link {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kQueue = std::size_t{1} << 20;  // bytes on their way to the other side
constexpr const char* kMessage = "a message of content";

wire::ContentMessage read_message(const wire::Frame& frame) {
  wire::ContentMessage message =
      wire::content_message_from_json(wire::parse_json(frame.bytes, kMessage, wire::kFrameLimit));
  if (const auto* refused = std::get_if<wire::ContentRefused>(&message))
    throw Refusal(refused->error);
  return message;
}

[[noreturn]] void unexpected() {
  throw Error(ErrorCode::invalid, "an unexpected message of content");
}

// Makes the folder of what the store has, and nothing stays of the store.
void put_in_place(const ContentStore& store, const fs::path& folder,
                  const std::vector<FileEntry>& files) {
  remove_tree(folder);
  make_folders(folder);
  std::map<std::string, fs::path> placed;  // by sum
  for (const FileEntry& entry : files) {
    const fs::path path = folder / entry.path;
    make_folders(path.parent_path());
    const auto [first, is_new] = placed.emplace(entry.sha256, path);
    if (is_new) {
      fs::rename(store.blob(entry.sha256), path);
    } else {
      std::error_code failed;
      fs::copy_file(first->second, path, failed);
      if (failed) throw errno_error("cannot write " + path.string(), failed.value());
    }
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    fs::last_write_time(path, fs::file_time_type::clock::now());
  }
  remove_tree(store.root());
}

}  // namespace

void say(const wire::FrameStreamPtr& stream, const wire::ContentMessage& message) {
  stream->send_text(wire::dump(wire::to_json(message)));
}

asio::awaitable<wire::ContentMessage> hear(wire::FrameStreamPtr stream) {
  const wire::Frame frame = co_await stream->read();
  co_return read_message(frame);
}

std::uint64_t bytes_of(const wire::ContentWant& want, const Source& source) {
  std::uint64_t bytes = 0;
  for (const wire::ContentWant::Blob& blob : want.blobs) {
    const std::uint64_t size = source(blob.sha256).size;
    bytes += size - std::min(blob.offset, size);
  }
  return bytes;
}

asio::awaitable<void> give(wire::FrameStreamPtr stream, wire::ContentWant want, Source source,
                           bool zstd, bool by_turn) {
  wire::ContentStream announced;
  announced.by_turn = by_turn;
  std::vector<BlobSender::Source> sources;
  for (const wire::ContentWant::Blob& blob : want.blobs) {
    BlobSender::Source& each = sources.emplace_back(source(blob.sha256));
    each.offset = std::min(blob.offset, each.size);
    announced.bytes += each.size - each.offset;
  }
  BlobSender sender(std::move(sources), zstd);
  say(stream, announced);
  for (std::string piece = sender.next(); !piece.empty(); piece = sender.next()) {
    stream->send({false, std::move(piece)});
    co_await stream->queue_below(kQueue);
    if (!stream->is_open()) throw Error(ErrorCode::unreachable, "the connection ended");
  }
  say(stream, wire::ContentEnd{});
}

asio::awaitable<void> give_all(wire::FrameStreamPtr stream, Source source, bool zstd) {
  while (true) {
    const wire::ContentMessage message = co_await hear(stream);
    const auto* want = std::get_if<wire::ContentWant>(&message);
    if (want == nullptr) unexpected();
    co_await give(stream, *want, source, zstd);
  }
}

Source files_of(const fs::path& folder, const std::vector<FileEntry>& files) {
  std::map<std::string, BlobSender::Source> sources;
  for (const FileEntry& entry : files) {
    sources[entry.sha256] = {entry.sha256, folder / entry.path, 0, entry.size, {}, O_NOFOLLOW};
  }
  return [sources = std::move(sources)](const std::string& sha256) {
    const auto found = sources.find(sha256);
    if (found == sources.end()) throw Error(ErrorCode::denied, "this content was not listed");
    return found->second;
  };
}

namespace {

// What is asked for of these blobs, from where earlier tries have left them.
struct Asked {
  Asked(const ContentStore& store, const std::map<std::string, std::uint64_t>& blobs) {
    for (const auto& [sha256, size] : blobs) {
      if (want.blobs.size() == wire::kWantLimit) break;
      const std::uint64_t partial = store.partial(sha256, size);
      here += partial;
      want.blobs.push_back({sha256, partial});
      expected[sha256] = size;
    }
  }

  wire::ContentWant want;
  std::map<std::string, std::uint64_t> expected;
  std::uint64_t here = 0;  // bytes of them
};

// Takes what is sent for one want. Where another is named instead, that one; absent when it came.
asio::awaitable<std::optional<wire::ContentElsewhere>> take_one(wire::FrameStreamPtr stream,
                                                                const ContentStore& store,
                                                                Asked asked, bool zstd,
                                                                Progress progress, bool* by_turn) {
  BlobReceiver receiver(store, std::move(asked.expected), zstd);
  bool begun = false;
  while (true) {
    const wire::Frame frame = co_await stream->read();
    progress(asked.here + receiver.received());
    if (!frame.text) {
      if (!begun) throw Error(ErrorCode::invalid, "content before it was announced");
      receiver.take(frame.bytes);
      continue;
    }
    const wire::ContentMessage message = read_message(frame);
    if (std::holds_alternative<wire::ContentEnd>(message)) {
      receiver.finish();
      co_return std::nullopt;
    }
    if (begun) unexpected();
    if (const auto* giver = std::get_if<wire::ContentElsewhere>(&message)) co_return *giver;
    const auto* announced = std::get_if<wire::ContentStream>(&message);
    if (announced == nullptr) unexpected();
    *by_turn = announced->by_turn;
    begun = true;
  }
}

}  // namespace

asio::awaitable<bool> bring(wire::FrameStreamPtr stream, const ContentStore& store,
                            std::map<std::string, std::uint64_t> blobs, bool zstd,
                            Progress progress, Elsewhere elsewhere) {
  bool by_turn = false;
  while (true) {
    const Asked asked(store, blobs);
    say(stream, asked.want);
    const std::optional<wire::ContentElsewhere> giver =
        co_await take_one(stream, store, asked, zstd, progress, &by_turn);
    if (!giver) co_return by_turn;
    if (!elsewhere) unexpected();
    const std::optional<std::string> missed = co_await elsewhere(*giver);
    if (!missed) co_return true;
    say(stream, wire::ContentMissed{*missed});
    // Some of it may have come, or all.
    std::erase_if(blobs, [&](const auto& blob) { return store.has(blob.first, blob.second); });
    if (blobs.empty()) co_return true;
  }
}

void check_list(const std::vector<FileEntry>& files) {
  // Of the two messages the one that says more.
  const wire::ContentMessage message = wire::ShardOffer{std::string(16, '0'), files, std::nullopt};
  if (wire::dump(wire::to_json(message)).size() <= wire::kFrameLimit) return;
  throw Error(ErrorCode::invalid, "a checkpoint of " + std::to_string(files.size()) +
                                      " files cannot be sent: their list is longer than " +
                                      human_bytes(wire::kFrameLimit));
}

asio::awaitable<bool> bring_parts(wire::FrameStreamPtr stream, fs::path folder,
                                  const std::vector<FileEntry>& files, Progress progress,
                                  Elsewhere elsewhere) {
  const ContentStore store(part_of(folder));
  bool by_turn = false;
  for (std::size_t before = SIZE_MAX;;) {
    std::map<std::string, std::uint64_t> missing;
    std::set<std::string_view> once;
    std::uint64_t bytes = 0;  // with those of copies: each file is to be one of its own
    for (const FileEntry& entry : files) {
      if (!once.insert(entry.sha256).second) {
        bytes += entry.size;
      } else if (!store.has(entry.sha256, entry.size)) {
        missing.emplace(entry.sha256, entry.size);
        bytes += entry.size - store.partial(entry.sha256, entry.size);
      }
    }
    check_room(folder.parent_path(), bytes);
    if (missing.empty()) co_return by_turn;
    if (missing.size() >= before) {
      throw Error(ErrorCode::failed, "content that is sent does not become whole");
    }
    before = missing.size();
    const bool came_by_turn =
        co_await bring(stream, store, std::move(missing), false, progress, elsewhere);
    by_turn = by_turn || came_by_turn;
  }
}

asio::awaitable<bool> bring_folder(wire::FrameStreamPtr stream, fs::path folder,
                                   const std::vector<FileEntry>& files, Progress progress,
                                   Elsewhere elsewhere) {
  const bool by_turn = co_await bring_parts(stream, folder, files, progress, elsewhere);
  put_in_place(ContentStore(part_of(folder)), folder, files);
  co_return by_turn;
}

fs::path part_of(const fs::path& folder) {
  return folder.string() + ".part";
}

}  // namespace dtrain::link
