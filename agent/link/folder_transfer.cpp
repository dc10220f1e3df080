#include "agent/link/folder_transfer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/wire/frames.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::link {
namespace {

// Exactly `size` bytes; a file that is shorter is an error.
std::string read_piece(const fs::path& path, std::uint64_t offset, std::size_t size) {
  const UniqueFd fd = open_file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  std::string bytes(size, '\0');
  std::size_t got = 0;
  while (got < size) {
    const ssize_t some =
        ::pread(fd.get(), bytes.data() + got, size - got, static_cast<off_t>(offset + got));
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) throw errno_error("cannot read " + printable_path(path), errno);
    if (some == 0) {
      throw Error(ErrorCode::conflict, printable_path(path) + " has become shorter");
    }
    got += static_cast<std::size_t>(some);
  }
  return bytes;
}

}  // namespace

void check_list(const wire::TreeFiles& list) {
  if (wire::dump(wire::to_json(wire::BulkMessage(list))).size() <= wire::kFrameLimit) return;
  throw Error(ErrorCode::exhausted, "a checkpoint of " + std::to_string(list.files.size()) +
                                        " files cannot be sent: their list is longer than " +
                                        human_bytes(wire::kFrameLimit));
}

// ---- Sending

struct FolderSender::Piece {
  int round = 0;
  wire::TreeData data;
  std::string bytes;
  std::optional<Error> error;
};

FolderSender::FolderSender(Worker& worker, Post post, std::string transfer, fs::path folder,
                           std::vector<FileEntry> files, Hooks hooks)
    : worker_(worker),
      post_(std::move(post)),
      transfer_(std::move(transfer)),
      folder_(std::move(folder)),
      files_(std::move(files)),
      hooks_(std::move(hooks)) {}

void FolderSender::go(std::size_t file, std::uint64_t offset) {
  ++round_;
  file_ = file;
  offset_ = offset;
  in_flight_ = 0;
  reading_ = false;
  over_ = false;
  more();
}

void FolderSender::credit(std::size_t bytes) {
  in_flight_ -= std::min(bytes, in_flight_);
  more();
}

void FolderSender::more() {
  while (!over_ && file_ < files_.size() && offset_ >= files_[file_].size) {
    ++file_;
    offset_ = 0;
  }
  if (over_ || reading_ || file_ >= files_.size() ||
      in_flight_ + wire::kBulkFrame > wire::kTreeWindow) {
    return;
  }
  reading_ = true;
  Piece piece;
  piece.round = round_;
  piece.data = {transfer_, file_, offset_,
                static_cast<std::size_t>(
                    std::min<std::uint64_t>(wire::kBulkFrame, files_[file_].size - offset_))};
  worker_.add([piece, path = folder_ / files_[file_].path, post = post_,
               weak = weak_from_this()]() mutable {
    try {
      piece.bytes = read_piece(path, piece.data.offset, piece.data.bytes);
    } catch (const std::exception& error) {
      piece.error = as_error(error);
    }
    const auto shared = std::make_shared<Piece>(std::move(piece));
    post([weak, shared] {
      if (const auto self = weak.lock()) self->got(std::move(*shared));
    });
  });
}

void FolderSender::got(Piece piece) {
  if (piece.round != round_ || over_) return;
  reading_ = false;
  if (piece.error) {
    over_ = true;
    hooks_.failed(*piece.error);
    return;
  }
  in_flight_ += piece.bytes.size();
  offset_ += piece.bytes.size();
  hooks_.send(piece.data, std::move(piece.bytes));
  more();
}

// ---- Receiving

struct FolderReceiver::Writer {
  fs::path folder;
  std::vector<FileEntry> files;
  std::size_t next = 0;  // the file that is to be opened next
  UniqueFd fd;
  std::optional<Sha256> sum;
  std::uint64_t left = 0;

  void begin() {
    remove_tree(folder);
    make_folders(folder);
    open_next();
  }

  void open_next() {
    while (next < files.size()) {
      const FileEntry& entry = files[next++];
      const fs::path path = folder / entry.path;
      make_folders(path.parent_path());
      fd = open_file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
      sum.emplace();
      left = entry.size;
      if (left > 0) return;
      check(entry);
    }
  }

  void check(const FileEntry& entry) {
    fd.reset();
    if (sum->hex() != entry.sha256) {
      throw Error(ErrorCode::failed,
                  printable(entry.path, false) + " is not what it was: its sum is another");
    }
  }

  void write(const std::string& bytes) {
    write_all(fd.get(), bytes);
    sum->add(bytes);
    left -= bytes.size();
    if (left > 0) return;
    check(files[next - 1]);
    open_next();
  }
};

FolderReceiver::FolderReceiver(Worker& worker, Post post, fs::path folder,
                               std::vector<FileEntry> files, Hooks hooks)
    : worker_(worker),
      post_(std::move(post)),
      files_(std::move(files)),
      hooks_(std::move(hooks)),
      writer_(std::make_shared<Writer>()) {
  for (const FileEntry& entry : files_) {
    if (!is_sha256(entry.sha256)) {
      throw Error(ErrorCode::invalid, printable(entry.path, false) + " comes without its sum");
    }
  }
  writer_->folder = std::move(folder);
  writer_->files = files_;
}

FolderReceiver::~FolderReceiver() = default;

void FolderReceiver::skip_empty() {
  while (file_ < files_.size() && offset_ >= files_[file_].size) {
    ++file_;
    offset_ = 0;
  }
}

void FolderReceiver::start() {
  skip_empty();
  const bool last = file_ >= files_.size();
  worker_.add([writer = writer_, post = post_, weak = weak_from_this(), last] {
    std::optional<Error> failed;
    try {
      writer->begin();
    } catch (const std::exception& error) {
      failed = as_error(error);
    }
    post([weak, failed, last] {
      if (const auto self = weak.lock()) self->written(0, failed, last);
    });
  });
}

void FolderReceiver::take(const wire::TreeData& data, std::string bytes) {
  if (over_ || file_ >= files_.size() || data.file != file_ || data.offset != offset_ ||
      bytes.empty() || bytes.size() > files_[file_].size - offset_) {
    return;
  }
  offset_ += bytes.size();
  skip_empty();
  const bool last = file_ >= files_.size();
  worker_.add(
      [writer = writer_, post = post_, weak = weak_from_this(), last, text = std::move(bytes)] {
        std::optional<Error> failed;
        try {
          writer->write(text);
        } catch (const std::exception& error) {
          failed = as_error(error);
        }
        post([weak, failed, last, size = text.size()] {
          if (const auto self = weak.lock()) self->written(size, failed, last);
        });
      });
}

void FolderReceiver::written(std::size_t bytes, const std::optional<Error>& failed, bool last) {
  if (over_) return;
  if (failed || last) {
    over_ = true;
    const auto self = shared_from_this();  // its owner drops it in `done`
    hooks_.done(failed);
    return;
  }
  if (bytes > 0) hooks_.credit(bytes);
}

// ---- Both ends of one message each

std::shared_ptr<FolderSender> offer(Worker& worker, const Post& post, const std::string& transfer,
                                    const fs::path& folder, const std::vector<FileEntry>& files,
                                    const Say& say, std::function<void()> failed) {
  FolderSender::Hooks hooks;
  hooks.send = say;
  hooks.failed = [transfer, say, failed = std::move(failed)](const Error& error) {
    failed();
    say(wire::TreeEnd{transfer, error}, {});
  };
  auto sender =
      std::make_shared<FolderSender>(worker, post, transfer, folder, files, std::move(hooks));
  say(wire::TreeFiles{transfer, files}, {});
  return sender;
}

void receive(std::shared_ptr<FolderReceiver>& receiver, Worker& worker, const Post& post,
             const fs::path& folder, const wire::TreeFiles& listed, const Say& say,
             std::function<void(std::optional<Error>)> done) {
  if (receiver && receiver->files() != listed.files) receiver.reset();
  if (!receiver) {
    FolderReceiver::Hooks hooks;
    hooks.credit = [say, transfer = listed.transfer](std::size_t bytes) {
      say(wire::TreeCredit{transfer, bytes}, {});
    };
    hooks.done = done;
    try {
      receiver =
          std::make_shared<FolderReceiver>(worker, post, folder, listed.files, std::move(hooks));
    } catch (const Error& error) {
      done(error);
      return;
    }
    receiver->start();
  }
  say(wire::TreeGo{listed.transfer, receiver->next_file(), receiver->next_offset()}, {});
}

}  // namespace dtrain::link
