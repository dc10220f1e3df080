#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/files/blob_stream.hpp"
#include "launcher/files/manifest.hpp"
#include "launcher/wire/frames.hpp"
#include "launcher/wire/node.hpp"

// The two ends of a conversation about content (launcher/wire/node.hpp): who has it gives, who
// wants it brings. For threads that may block on the disk. Everything throws Error, unreachable for
// a connection that broke.
namespace dtrain::link {

void say(const wire::FrameStreamPtr& stream, const wire::ContentMessage& message);
// What the other side says next; a ContentRefused is thrown as a Refusal.
struct Refusal : Error {
  explicit Refusal(const Error& error) : Error(error) {}
};
boost::asio::awaitable<wire::ContentMessage> hear(wire::FrameStreamPtr stream);

// Where a blob lies that may be given; throws for any other.
using Source = std::function<BlobSender::Source(const std::string& sha256)>;
// How much it asks for.
std::uint64_t bytes_of(const wire::ContentWant& want, const Source& source);
// Answers one ContentWant.
boost::asio::awaitable<void> give(wire::FrameStreamPtr stream, wire::ContentWant want,
                                  Source source, bool zstd, bool by_turn = false);
// Answers one after the other, until the connection ends.
boost::asio::awaitable<void> give_all(wire::FrameStreamPtr stream, Source source, bool zstd);
// Of a folder as it was listed.
Source files_of(const fs::path& folder, const std::vector<FileEntry>& files);

// Told before each piece is taken: how many bytes of what is asked for are here. May throw, to end
// it.
using Progress = std::function<void(std::uint64_t here)>;
// What to do where the giver names another: brings all that is missing, and not only what was asked
// for, or says why that was not to be had.
using Elsewhere =
    std::function<boost::asio::awaitable<std::optional<std::string>>(wire::ContentElsewhere)>;
// Asks for blobs, sum to size, but at most wire::kWantLimit of them, and takes them into the store.
// True when they came by turn, so that others may want them.
boost::asio::awaitable<bool> bring(wire::FrameStreamPtr stream, const ContentStore& store,
                                   std::map<std::string, std::uint64_t> blobs, bool zstd,
                                   Progress progress, Elsewhere elsewhere = {});

// Error(exhausted) when the list is too long for one message.
void check_list(const std::vector<FileEntry>& files);
// Asks for all that these files hold; once it is here, each sum verified, makes `folder` anew of
// it, file by file. Until then it lies beside the folder, and any later try goes on from there.
// `files` outlives it. True as of bring().
boost::asio::awaitable<bool> bring_folder(wire::FrameStreamPtr stream, fs::path folder,
                                          const std::vector<FileEntry>& files, Progress progress,
                                          Elsewhere elsewhere = {});
// The same, but leaves it beside the folder.
boost::asio::awaitable<bool> bring_parts(wire::FrameStreamPtr stream, fs::path folder,
                                         const std::vector<FileEntry>& files, Progress progress,
                                         Elsewhere elsewhere = {});
fs::path part_of(const fs::path& folder);  // what has come

}  // namespace dtrain::link
