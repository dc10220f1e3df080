#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/files/manifest.hpp"
#include "launcher/wire/node.hpp"

// The two ends of a folder's way over the bulk connection (launcher/wire/node.hpp, TreeFiles). All
// functions and callbacks on the owner's thread; the files themselves are touched on the worker's
// alone. What is dropped takes no more callbacks.
namespace dtrain::link {

// Runs a function on the owner's thread, later; called on the worker's.
using Post = std::function<void(std::function<void()>)>;

// Passes a message on to the other side.
using Say = std::function<void(const wire::BulkMessage&, std::string bytes)>;

// Throws Error(exhausted) when the list is longer than one message may be. Any thread.
void check_list(const wire::TreeFiles& list);

// Gives the bytes of files in order, at most wire::kTreeWindow ahead of the credit.
class FolderSender : public std::enable_shared_from_this<FolderSender> {
 public:
  struct Hooks {
    std::function<void(const wire::TreeData&, std::string bytes)> send;
    std::function<void(const Error&)> failed;  // a file is not as it was listed; once
  };
  FolderSender(Worker& worker, Post post, std::string transfer, fs::path folder,
               std::vector<FileEntry> files, Hooks hooks);

  // Begins, or begins anew from there: what was on its way is forgotten.
  void go(std::size_t file, std::uint64_t offset);
  void credit(std::size_t bytes);

 private:
  struct Piece;
  void more();
  void got(Piece piece);

  Worker& worker_;
  Post post_;
  std::string transfer_;
  fs::path folder_;
  std::vector<FileEntry> files_;
  Hooks hooks_;
  std::size_t file_ = 0;
  std::uint64_t offset_ = 0;
  std::size_t in_flight_ = 0;
  int round_ = 0;  // of go()
  bool reading_ = false;
  bool over_ = true;
};

// Writes them into a folder of its own, made anew, and verifies size and sum of each.
class FolderReceiver : public std::enable_shared_from_this<FolderReceiver> {
 public:
  struct Hooks {
    std::function<void(std::size_t bytes)> credit;  // so many are written
    std::function<void(std::optional<Error>)>
        done;  // all is there; or not, and never will be; once
  };
  // Error(invalid) for a list without sums.
  FolderReceiver(Worker& worker, Post post, fs::path folder, std::vector<FileEntry> files,
                 Hooks hooks);
  ~FolderReceiver();

  // Begins; `done` never comes from within.
  void start();
  const std::vector<FileEntry>& files() const { return files_; }
  // What is wanted next; said again after a new connection.
  std::size_t next_file() const { return file_; }
  std::uint64_t next_offset() const { return offset_; }
  // Bytes that are not those that come next are passed over.
  void take(const wire::TreeData& data, std::string bytes);

 private:
  struct Writer;
  void written(std::size_t bytes, const std::optional<Error>& failed, bool last);
  void skip_empty();

  Worker& worker_;
  Post post_;
  std::vector<FileEntry> files_;
  Hooks hooks_;
  std::shared_ptr<Writer> writer_;  // the worker's thread only
  std::size_t file_ = 0;
  std::uint64_t offset_ = 0;
  bool over_ = false;
};

// Lists the files to the other side and gives what it then asks for. `failed` is told first.
std::shared_ptr<FolderSender> offer(Worker& worker, const Post& post, const std::string& transfer,
                                    const fs::path& folder, const std::vector<FileEntry>& files,
                                    const Say& say, std::function<void()> failed);

// Brings what was listed into the folder, by `receiver` where that brings the same already, and
// says from where on it is wanted.
void receive(std::shared_ptr<FolderReceiver>& receiver, Worker& worker, const Post& post,
             const fs::path& folder, const wire::TreeFiles& listed, const Say& say,
             std::function<void(std::optional<Error>)> done);

}  // namespace dtrain::link
