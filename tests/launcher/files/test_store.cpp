#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "launcher/core/error.hpp"
#include "launcher/files/blob_stream.hpp"
#include "launcher/files/store.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

std::string sum_of(const std::string& text) {
  Sha256 sum;
  sum.add(text);
  return sum.hex();
}

ContentEntry file(const std::string& path, const std::string& text, unsigned mode = 0644) {
  ContentEntry entry;
  entry.path = path;
  entry.sha256 = sum_of(text);
  entry.size = text.size();
  entry.mode = mode;
  return entry;
}

// Writes into a stored blob as a careless program would.
void spoil(const fs::path& blob, const std::string& text) {
  fs::permissions(blob, fs::perms::owner_all);
  std::ofstream(blob, std::ios::binary | std::ios::trunc) << text;
}

bool empty_folder(const fs::path& folder) {
  return !fs::exists(folder) || fs::is_empty(folder);
}

// A text that does not fit the buffers of any stream, and packs only a little.
std::string long_text(std::size_t size) {
  std::string text;
  std::uint32_t state = 1;
  while (text.size() < size) {
    state = state * 1664525 + 1013904223;
    text += static_cast<char>('a' + (state >> 24) % 64);
  }
  return text;
}

void send(BlobSender& sender, BlobReceiver& receiver) {
  for (std::string piece = sender.next(); !piece.empty(); piece = sender.next()) {
    receiver.take(piece);
  }
  receiver.finish();
}

}  // namespace

TEST_CASE("a blob is there when it is whole, and again when somebody else has it too") {
  TemporaryFolder folder;
  const ContentStore store(folder / "content");
  const std::string text = "some text";
  CHECK_FALSE(store.has(sum_of(text)));
  CHECK_THROWS_AS(store.read(sum_of(text)), Error);
  store.put(sum_of(text), text);
  store.put(sum_of(text), text);
  CHECK(store.has(sum_of(text)));
  CHECK(store.has(sum_of(text), text.size()));
  CHECK(store.read(sum_of(text)) == text);
  CHECK_THROWS_AS(store.put(sum_of("other"), text), Error);
  CHECK_FALSE(store.has(sum_of("other")));
  CHECK(empty_folder(store.root() / "incoming"));
  CHECK_THROWS_AS((void)store.has("../../etc/passwd"), Error);

  const ContentStore neighbour(folder / "neighbour");
  CHECK(neighbour.adopt(store, sum_of(text)));
  CHECK(neighbour.read(sum_of(text)) == text);
  CHECK_FALSE(neighbour.adopt(store, sum_of("other")));
}

TEST_CASE("a damaged blob is noticed by a look at it, and goes") {
  TemporaryFolder folder;
  const ContentStore store(folder / "content");
  const std::string text = "some text";
  const std::string name = sum_of(text);
  for (const std::string& other : {std::string("SOME text"), std::string("some"), std::string()}) {
    CAPTURE(other);
    store.put(name, text);
    spoil(store.blob(name), other);
    CHECK_FALSE(store.has(name, text.size()));
    CHECK_FALSE(fs::exists(store.blob(name)));
  }
  // Touched, not damaged: it stays, and is sealed again.
  store.put(name, text);
  spoil(store.blob(name), text);
  CHECK(store.has(name, text.size()));
  struct stat status {};
  CHECK(::stat(store.blob(name).c_str(), &status) == 0);
  CHECK(status.st_mtime == 1);
  CHECK((status.st_mode & 0222) == 0);
}

TEST_CASE("what broke off goes on where it was; what does not fit its sum is begun anew") {
  TemporaryFolder folder;
  const ContentStore store(folder / "content");
  const std::string text = long_text(100000);
  const std::string name = sum_of(text);
  {
    BlobWriter writer(store, name);
    writer.add(std::string_view(text).substr(0, 60000));
  }
  CHECK(store.partial(name, text.size()) == 60000);
  {
    BlobWriter writer(store, name);
    CHECK(writer.offset() == 60000);
    // Another one at the same time writes its own.
    BlobWriter second(store, name);
    CHECK(second.offset() == 0);
    second.add(text);
    second.finish();
    writer.add(std::string_view(text).substr(60000));
    writer.finish();
  }
  CHECK(store.read(name) == text);
  CHECK(empty_folder(store.root() / "incoming"));

  const std::string other = sum_of("other");
  {
    BlobWriter writer(store, other);
    writer.add("wrong");
    CHECK_THROWS_AS(writer.finish(), Error);
  }
  CHECK(store.partial(other, 100) == 0);
  {
    BlobWriter writer(store, other);
    writer.add("far too long for what it is");
  }
  CHECK(store.partial(other, 5) == 0);
}

TEST_CASE("many at once write the same blobs") {
  TemporaryFolder folder;
  // As an ordinary user, who cannot write into what is read-only, where this is root.
  const uid_t user = ::geteuid() == 0 ? 65534 : ::geteuid();
  REQUIRE(::chown(folder.path().c_str(), user, static_cast<gid_t>(-1)) == 0);
  std::vector<std::string> texts;
  for (int i = 0; i < 400; ++i) texts.push_back(long_text(2000) + std::to_string(i));
  std::vector<std::thread> writers;
  std::atomic<int> failed{0};
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&] {
      ::setfsuid(user);  // of this thread
      const ContentStore store(folder / "content");
      try {
        for (const std::string& text : texts) store.put(sum_of(text), text);
      } catch (const Error&) {
        ++failed;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(failed == 0);
  const ContentStore store(folder / "content");
  for (const std::string& text : texts) CHECK(store.read(sum_of(text)) == text);
  CHECK(empty_folder(store.root() / "incoming"));
}

TEST_CASE("a copy of a tree belongs to who writes into it") {
  TemporaryFolder folder;
  const ContentStore store(folder / "content");
  const std::string large = long_text(600000);
  ContentTree tree;
  tree.entries = {file("a", "first"), file("b/c/run", "#!/bin/sh\n", 0755), file("b/large", large)};
  ContentEntry link;
  link.path = "d";
  link.kind = ContentEntry::Kind::link;
  link.target = "a";
  ContentEntry empty;
  empty.path = "e/f";
  empty.kind = ContentEntry::Kind::folder;
  tree.entries.push_back(link);
  tree.entries.push_back(empty);
  CHECK(missing_blobs(store, tree).size() == 3);
  CHECK_THROWS_AS(make_copy(store, tree, folder / "copy"), Error);
  CHECK_FALSE(fs::exists(folder / "copy"));
  CHECK_FALSE(fs::exists(folder / "copy.part"));
  for (const std::string& text : {std::string("first"), std::string("#!/bin/sh\n"), large}) {
    store.put(sum_of(text), text);
  }
  CHECK(missing_blobs(store, tree).empty());
  for (const char* name : {"copy", "second"}) {
    make_copy(store, tree, folder / name);
    CHECK(read_file(folder.path() / name / "a") == "first");
    CHECK(read_file(folder.path() / name / "d") == "first");
    CHECK(sum_file(folder.path() / name / "b/large").sha256 == sum_of(large));
    CHECK(fs::is_directory(folder.path() / name / "e/f"));
    struct stat status {};
    CHECK(::stat((folder.path() / name / "b/c/run").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0755);
    CHECK(status.st_nlink == 1);
    std::ofstream(folder.path() / name / "a") << "mine";
    std::ofstream(folder.path() / name / "b/large") << "mine";
  }
  CHECK(store.has(sum_of("first")));
  CHECK(store.read(sum_of(large)) == large);
  // A small one is summed on its way, whatever its stamp says.
  const fs::path blob = store.blob(sum_of("first"));
  spoil(blob, "FIRST");
  const timespec times[2] = {{1, 0}, {1, 0}};
  CHECK(::utimensat(AT_FDCWD, blob.c_str(), times, 0) == 0);
  CHECK_THROWS_AS(make_copy(store, tree, folder / "third"), Error);
  CHECK_FALSE(fs::exists(blob));
  std::atomic<bool> stop{true};
  CHECK_THROWS_AS(make_copy(store, tree, folder / "fourth", &stop), Error);
}

TEST_CASE("a bundle is made of links, and mended when somebody spoiled it") {
  TemporaryFolder folder;
  const ContentStore store(folder / "content");
  ContentTree tree;
  tree.entries = {file("lib/liba.so", "library")};
  store.put(sum_of("library"), "library");
  make_bundle(store, tree, "t");
  const fs::path library = store.bundle("t") / "lib/liba.so";
  struct stat status {};
  CHECK(::stat(library.c_str(), &status) == 0);
  CHECK(status.st_nlink == 2);
  const auto inode = status.st_ino;
  make_bundle(store, tree, "t");
  CHECK(::stat(library.c_str(), &status) == 0);
  CHECK(status.st_ino == inode);
  spoil(library, "LIBRARY");
  CHECK_THROWS_AS(make_bundle(store, tree, "t"), Error);  // its blob is the same file: gone
  store.put(sum_of("library"), "library");
  make_bundle(store, tree, "t");
  CHECK(read_file(library) == "library");
}

TEST_CASE("no room is said with both numbers") {
  CHECK_NOTHROW(check_room("/data", 100, 100));
  try {
    check_room("/data", std::uint64_t{3} << 30, std::uint64_t{1} << 20);
    FAIL("there is no room");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::exhausted);
    CHECK(std::string(error.what()).find("3.0 GiB") != std::string::npos);
    CHECK(std::string(error.what()).find("1.0 MiB") != std::string::npos);
    CHECK(std::string(error.what()).find("/data") != std::string::npos);
  }
}

TEST_CASE("blobs as one stream, packed or not, from files and from memory") {
  for (const bool zstd : {false, true}) {
    CAPTURE(zstd);
    TemporaryFolder folder;
    const ContentStore store(folder / "content");
    std::map<std::string, std::uint64_t> expected;
    std::vector<BlobSender::Source> sources;
    std::vector<std::string> texts{"", "x", long_text(300000), long_text(70000) + "y"};
    for (std::size_t i = 0; i < texts.size(); ++i) {
      BlobSender::Source source;
      source.sha256 = sum_of(texts[i]);
      source.size = texts[i].size();
      if (i % 2 == 0) {
        source.file = folder / ("source-" + std::to_string(i));
        std::ofstream(source.file, std::ios::binary) << texts[i];
      } else {
        source.text = texts[i];
      }
      expected[source.sha256] = source.size;
      sources.push_back(source);
    }
    // Half of the third is there.
    {
      BlobWriter writer(store, sources[2].sha256);
      writer.add(std::string_view(texts[2]).substr(0, 150000));
    }
    sources[2].offset = 150000;
    BlobSender sender(sources, zstd);
    BlobReceiver receiver(store, expected, zstd);
    send(sender, receiver);
    for (const std::string& text : texts) CHECK(store.read(sum_of(text)) == text);
    CHECK(receiver.received() == 150000 + 1 + 70001);
    CHECK(sender.read() == receiver.received());
    // Again: nothing is written, all is passed over.
    sources[2].offset = 0;
    BlobSender again(sources, zstd);
    BlobReceiver twice(store, expected, zstd);
    CHECK_NOTHROW(send(again, twice));
  }
}

TEST_CASE("a file that is another than was announced is named by who sends it") {
  TemporaryFolder folder;
  BlobSender::Source source;
  source.file = folder / "growing.log";
  const std::string announced = long_text(1000);
  source.sha256 = sum_of(announced);
  source.size = announced.size();
  for (const std::string& now : {"and more " + announced, announced.substr(1)}) {
    std::ofstream(source.file, std::ios::binary | std::ios::trunc) << now;
    try {
      BlobSender sender({source}, false);
      while (!sender.next().empty()) continue;
      FAIL("it was sent");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::conflict);
      CHECK(error.message().find("growing.log changed while it was sent") != std::string::npos);
    }
  }
}

TEST_CASE("a stream that is not what was asked for is refused") {
  TemporaryFolder folder;
  const ContentStore store(folder / "content");
  const std::string text = long_text(1000);
  const auto source = [&](const std::string& sum, const std::string& bytes) {
    BlobSender::Source one;
    one.sha256 = sum;
    one.text = bytes;
    one.size = bytes.size();
    return one;
  };
  for (const bool zstd : {false, true}) {
    CAPTURE(zstd);
    {
      BlobSender sender({source(sum_of(text), text)}, zstd);
      BlobReceiver receiver(store, {}, zstd);
      CHECK_THROWS_AS(send(sender, receiver), Error);
    }
    {
      BlobSender sender({source(sum_of(text), text)}, zstd);
      BlobReceiver receiver(store, {{sum_of(text), 999}}, zstd);
      CHECK_THROWS_AS(send(sender, receiver), Error);
    }
    {
      BlobSender sender({source(sum_of("other"), text)}, zstd);
      BlobReceiver receiver(store, {{sum_of("other"), 1000}}, zstd);
      CHECK_THROWS_AS(send(sender, receiver), Error);
      CHECK_FALSE(store.has(sum_of("other")));
    }
    {
      BlobSender sender({source(sum_of(text), text)}, zstd);
      BlobReceiver receiver(store, {{sum_of(text), 1000}}, zstd);
      const std::string all = sender.next();
      receiver.take(std::string_view(all).substr(0, all.size() / 2));
      CHECK_THROWS_AS(receiver.finish(), Error);
    }
  }
  BlobReceiver receiver(store, {}, true);
  CHECK_THROWS_AS(receiver.take("this is no zstd at all"), Error);
  // A file that has become shorter.
  BlobSender::Source shorter = source(sum_of(text), "");
  shorter.file = folder / "file";
  shorter.size = 1000;
  std::ofstream(shorter.file) << "short";
  BlobSender sender({shorter}, false);
  CHECK_THROWS_AS((void)sender.next(), Error);
}
