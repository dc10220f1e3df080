#include <doctest/doctest.h>

#include "launcher/core/error.hpp"
#include "launcher/files/sealed.hpp"
#include "tests/launcher/files/sync_world.hpp"

using namespace dtrain;
using namespace dtrain::testing;

namespace {

// A sync whose archive is put where the receiver takes parcels from.
struct ParcelWorld : SyncWorld {
  ParcelWorld() {
    fs::create_directories(folder());
    receiving.parcels = folder();
    sending.parcel = [this](const SyncArchive& archive) -> std::optional<SyncParcel> {
      ids.push_back(archive.id);
      bytes = archive.bytes;
      SyncParcel parcel{"parcel", make_seal_key(), ""};
      std::string sealed;
      Sealer sealer(parcel.key, [&](std::string_view piece) { sealed += piece; });
      parcel.after = archive.read([&](std::string_view block) { sealer.add(block); });
      sealer.finish();
      if (spoil) sealed[sealed.size() / 2] = static_cast<char>(sealed[sealed.size() / 2] ^ 1);
      write_file(folder() / "parcel", sealed);
      if (!name.empty()) parcel.file = name;
      return parcel;
    };
  }
  fs::path folder() const { return home() / "parcels"; }

  std::vector<std::string> ids;
  std::uint64_t bytes = 0;
  bool spoil = false;
  std::string name;
};

}  // namespace

TEST_CASE("an archive that came by another way is as good") {
  ParcelWorld world;
  world.write("a", "alpha");
  world.write("folder/b", std::string(3000000, 'b'));
  const SyncOutcome first = world.sync();
  CHECK(first.complete());
  CHECK(first.mounts[0].files == 2);
  CHECK(world.bytes == 3000005);
  CHECK(first.wire_bytes == 0);
  CHECK(picture(world.source()) == picture(world.target()));
  CHECK(fs::is_empty(world.folder()));
  // Nothing is wanted: nothing is asked for.
  world.sync();
  CHECK(world.ids.size() == 1);
}

TEST_CASE("who wants the same of the same has the same archive, and nobody else") {
  ParcelWorld one;
  one.write("a", "alpha");
  one.write("b", "beta");
  one.sync();
  fs::remove_all(one.target());
  fs::remove_all(one.state());
  one.sync();
  CHECK(one.ids[0] == one.ids[1]);
  fs::remove(one.target() / "b");
  one.sync();
  CHECK(one.ids[2] != one.ids[0]);
  fs::remove_all(one.target());
  fs::remove_all(one.state());
  one.write("b", "gamma");
  one.sync();
  CHECK(one.ids[3] != one.ids[0]);
}

TEST_CASE("where there is no other way, the stream is") {
  ParcelWorld world;
  world.write("a", "alpha");
  world.sending.parcel = [](const SyncArchive&) { return std::optional<SyncParcel>(); };
  CHECK(world.sync().complete());
  CHECK(world.read_there("a") == "alpha");
}

TEST_CASE("a parcel that was changed on its way, or is none, puts nothing in place") {
  ParcelWorld world;
  world.write("a", std::string(100000, 'a'));
  SUBCASE("changed") {
    world.spoil = true;
  }
  SUBCASE("a path") {
    world.name = "../x/parcel";
  }
  SUBCASE("missing") {
    world.name = "other";
  }
  SUBCASE("a receiver that takes none") {
    world.receiving.parcels.clear();
  }
  CHECK_THROWS_AS(world.sync(), Error);
  CHECK_FALSE(fs::exists(world.target() / "a"));
  CHECK(left_overs(world.home()).empty());
}
