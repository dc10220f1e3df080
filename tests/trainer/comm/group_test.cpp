#include "trainer/comm/group.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>

#include "tests/trainer/comm/processes.hpp"
#include "tests/trainer/support/temporary.hpp"

using namespace dtrain::train;
using namespace dtrain::train::comm;
using test::contains;
using test::fork_ranks;
using test::Rank;
using test::require;

namespace {

// Bytes in this rank's memory: in the heap that peers reach, or elsewhere.
class Buffer {
 public:
  Buffer(std::size_t bytes, bool shared) : shared_(shared) {
    if (shared) {
      data_ = SharedHeap::of_process()->allocate(bytes);
    } else {
      own_.resize(bytes + 1);
      data_ = own_.data();
    }
  }
  ~Buffer() {
    if (shared_) SharedHeap::of_process()->free(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }

 private:
  bool shared_;
  void* data_;
  std::vector<std::byte> own_;
};

// No two ranks have the same, and sums of them depend on their order.
float value(int rank, std::size_t index) {
  return (1.0F + static_cast<float>(index % 97) * 0.37F) *
         (rank % 2 == 0 ? 1e4F : 1e-3F * static_cast<float>(rank + 1));
}

float sum_in_order(int ranks, std::size_t index) {
  float sum = value(0, index);
  for (int r = 1; r < ranks; ++r) sum += value(r, index);
  return sum;
}

void succeed(const std::vector<test::Ended>& ranks) {
  for (const test::Ended& rank : ranks) {
    CHECK(rank.error == "");
    CHECK(rank.code == 0);
  }
}

// This process with fewer descriptors, and as a user who may not have more of them on their way.
void limit_files(rlim_t files) {
  const rlimit few{files, files};
  require(::setrlimit(RLIMIT_NOFILE, &few) == 0, "a limit");
  constexpr unsigned kNobody = 65534;
  if (::geteuid() != 0) return;
  // Of a namespace with no other user root is none either.
  if (::setgid(kNobody) != 0 && errno == EINVAL) return;
  require(::setuid(kNobody) == 0, "another user");
}

// Descriptors that nobody receives.
void send_many(int socket, std::size_t count) {
  const std::vector<int> fds(count, socket);
  std::vector<char> control(CMSG_SPACE(sizeof(int) * count));
  char byte = 0;
  iovec part{&byte, 1};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* const item = CMSG_FIRSTHDR(&header);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(sizeof(int) * count);
  std::memcpy(CMSG_DATA(item), fds.data(), sizeof(int) * count);
  require(::sendmsg(socket, &header, 0) == 1, "descriptors on their way");
}

// Or gone.
void wait_until_asleep(const std::string& pid) {
  for (char state = 'R'; state == 'R' || state == 'D';) {
    ::usleep(1000);
    std::string stat;
    try {
      stat = read_text("/proc/" + pid + "/stat", 4096);
    } catch (const Error&) {
      return;
    }
    state = stat.at(stat.rfind(')') + 2);
  }
}

// Which of the ranks have their data in the shared heap.
enum class Where { elsewhere, shared, mixed };

bool is_shared(Where where, int rank) {
  return where == Where::shared || (where == Where::mixed && rank % 2 == 1);
}

// Around every border: nothing, less than a line, the small buffers, stages, odd sizes.
const std::vector<std::size_t> kCounts{0, 1, 15, 1000, 8192, 8193, 9000, 65537, 262144, 1000003};

}  // namespace

TEST_CASE("all_reduce adds up in the order of the ranks, bit by bit, wherever the data is") {
  for (const int ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    succeed(fork_ranks(ranks, [](const Rank& rank) {
      const auto group = rank.join();
      for (const Where where : {Where::elsewhere, Where::shared, Where::mixed}) {
        for (const std::size_t count : kCounts) {
          Buffer data(count * sizeof(float), is_shared(where, rank.rank));
          for (std::size_t i = 0; i < count; ++i) data.as<float>()[i] = value(rank.rank, i);
          group->all_reduce(data.as<float>(), count, Element::f32, Reduction::sum);
          for (std::size_t i = 0; i < count; ++i) {
            require(data.as<float>()[i] == sum_in_order(rank.size, i),
                    "element " + std::to_string(i) + " of " + std::to_string(count));
          }
        }
      }
      if (rank.size > 1) {
        require(group->in_place_calls() == 5, "in place where all share");
      }
    }));
  }
}

TEST_CASE("reduce_scatter gives each rank its part, also in place") {
  for (const int ranks : {2, 3}) {
    succeed(fork_ranks(ranks, [](const Rank& rank) {
      const auto group = rank.join();
      const auto size = static_cast<std::size_t>(rank.size);
      for (const Where where : {Where::elsewhere, Where::shared, Where::mixed}) {
        for (const std::size_t count : kCounts) {
          for (const bool in_place : {false, true}) {
            Buffer in(count * size * sizeof(float), is_shared(where, rank.rank));
            Buffer apart(count * sizeof(float), false);
            const std::size_t first = count * static_cast<std::size_t>(rank.rank);
            for (std::size_t i = 0; i < count * size; ++i) {
              in.as<float>()[i] = value(rank.rank, i);
            }
            float* const out = in_place ? in.as<float>() + first : apart.as<float>();
            group->reduce_scatter(out, in.as<float>(), count, Element::f32, Reduction::sum);
            for (std::size_t i = 0; i < count; ++i) {
              require(out[i] == sum_in_order(rank.size, first + i), "part " + std::to_string(i));
            }
          }
        }
      }
    }));
  }
}

TEST_CASE("all_gather and broadcast carry any bytes") {
  for (const int ranks : {2, 3}) {
    succeed(fork_ranks(ranks, [](const Rank& rank) {
      const auto group = rank.join();
      const auto size = static_cast<std::size_t>(rank.size);
      const auto byte = [](std::size_t r, std::size_t i) {
        return static_cast<unsigned char>(i * 31 + r * 7 + 3);
      };
      for (const Where where : {Where::elsewhere, Where::shared, Where::mixed}) {
        for (const std::size_t count : kCounts) {
          const auto own = static_cast<std::size_t>(rank.rank);
          for (const bool in_place : {false, true}) {
            Buffer all(count * size, is_shared(where, rank.rank));
            Buffer apart(count, is_shared(where, rank.rank));
            unsigned char* const in =
                in_place ? all.as<unsigned char>() + own * count : apart.as<unsigned char>();
            for (std::size_t i = 0; i < count; ++i) in[i] = byte(own, i);
            group->all_gather(all.as<void>(), in, count);
            for (std::size_t r = 0; r < size; ++r) {
              for (std::size_t i = 0; i < count; ++i) {
                require(all.as<unsigned char>()[r * count + i] == byte(r, i), "gathered");
              }
            }
          }
          for (int root = 0; root < rank.size; ++root) {
            Buffer data(count, is_shared(where, rank.rank));
            for (std::size_t i = 0; i < count; ++i) data.as<unsigned char>()[i] = byte(own, i);
            group->broadcast(data.as<void>(), count, root);
            for (std::size_t i = 0; i < count; ++i) {
              require(data.as<unsigned char>()[i] == byte(static_cast<std::size_t>(root), i),
                      "broadcast");
            }
          }
        }
      }
      group->barrier();
    }));
  }
}

TEST_CASE("parts are summed where they lie or not at all by anybody, and gathered") {
  for (const int ranks : {2, 3}) {
    succeed(fork_ranks(ranks, [](const Rank& rank) {
      const auto group = rank.join();
      constexpr std::size_t kCount = 50001;
      constexpr double kFactor = 1.0 / 3;
      constexpr std::size_t kUnit = sizeof(float);
      // Rank r has two parts, of odd sizes; what is left belongs to nobody.
      std::vector<std::vector<Range>> parts;
      for (std::size_t r = 0; r < static_cast<std::size_t>(rank.size); ++r) {
        parts.push_back({{r * 101 * kUnit, (100 + r) * kUnit},
                         {(1000 + r * 16000) * kUnit, (15999 - r) * kUnit}});
      }
      for (const Where where : {Where::shared, Where::mixed, Where::elsewhere}) {
        Buffer data(kCount * kUnit, is_shared(where, rank.rank));
        for (std::size_t i = 0; i < kCount; ++i) data.as<float>()[i] = value(rank.rank, i);
        const std::vector<Range>& mine = parts[static_cast<std::size_t>(rank.rank)];
        std::vector<std::vector<float>> sums;
        std::vector<void*> outs;
        for (const Range& part : mine) {
          outs.push_back(sums.emplace_back(part.length / kUnit, -1.0F).data());
        }
        const bool reduced = group->reduce_parts(data.as<float>(), kCount * kUnit, Element::f32,
                                                 kFactor, mine, outs);
        require(reduced == (where == Where::shared), "in place or not at all");
        for (std::size_t p = 0; p < mine.size(); ++p) {
          for (std::size_t i = 0; i < sums[p].size(); ++i) {
            const std::size_t at = mine[p].begin / kUnit + i;
            float expected = value(0, at) * static_cast<float>(kFactor);
            for (int r = 1; r < rank.size; ++r) {
              const float product = value(r, at) * static_cast<float>(kFactor);
              expected += product;
            }
            require(sums[p][i] == (reduced ? expected : -1.0F), "sum of " + std::to_string(at));
            require(data.as<float>()[at] == value(rank.rank, at), "the data stays");
          }
        }
        std::vector<Parts> by_rank;
        for (const std::vector<Range>& its : parts) {
          by_rank.emplace_back();
          for (const Range& part : its) {
            by_rank.back().emplace_back(data.as<std::byte>() + part.begin, part.length);
          }
          by_rank.back().emplace_back();  // nothing, which changes nothing
        }
        group->gather_parts(by_rank);
        std::vector<int> owner(kCount, rank.rank);
        for (std::size_t r = 0; r < parts.size(); ++r) {
          for (const Range& part : parts[r]) {
            std::fill_n(owner.begin() + static_cast<std::ptrdiff_t>(part.begin / kUnit),
                        part.length / kUnit, static_cast<int>(r));
          }
        }
        for (std::size_t i = 0; i < kCount; ++i) {
          require(data.as<float>()[i] == value(owner[i], i), "owner of " + std::to_string(i));
        }
      }
    }));
  }
}

TEST_CASE("two groups of the same processes do not disturb each other") {
  succeed(fork_ranks(3, [](const Rank& rank) {
    const auto one = rank.join({}, "one");
    const auto two = rank.join({}, "two");
    for (int round = 0; round < 50; ++round) {
      for (const auto& group : {one.get(), two.get()}) {
        std::vector<double> data(20000, rank.rank + round);
        group->all_reduce(data.data(), data.size(), Element::f64, Reduction::sum);
        require(data.front() == 3.0 * round + 3 && data.back() == data.front(), "sum");
        require(group->last_left(rank.rank) == group->last_post(rank.rank).sequence, "left");
      }
    }
  }));
}

TEST_CASE("a rank that dies is named by the others in under a second") {
  for (const int spins : {0, 2000}) {
    const auto ranks = fork_ranks(3, [spins](const Rank& rank) {
      SharedGroup::Options options;
      options.spins = spins;
      const auto group = rank.join(options);
      group->barrier();
      if (rank.rank == 1) ::raise(SIGKILL);
      const auto began = std::chrono::steady_clock::now();
      std::string message;
      try {
        float one = 1;
        group->all_reduce(&one, 1, Element::f32, Reduction::sum);
      } catch (const CollectiveError& error) {
        message = error.what();
      }
      require(std::chrono::steady_clock::now() - began < std::chrono::seconds(1), "too slow");
      // It is seen by this rank, or said by another that has seen it.
      require(contains(message, "rank 1 died") && contains(message, "all_reduce #3"), message);
      std::string again;
      try {
        group->barrier();
      } catch (const CollectiveError& error) {
        again = error.what();
      }
      require(again == message, "a broken group stays broken");
    });
    CHECK(ranks[1].code == 128 + SIGKILL);
    for (const std::size_t rank : {0U, 2U}) {
      CHECK(ranks[rank].error == "");
      CHECK(ranks[rank].code == 0);
    }
  }
}

TEST_CASE("a rank that leaves when its work is done disturbs nobody") {
  succeed(fork_ranks(2, [](const Rank& rank) {
    for (int round = 0; round < 20; ++round) {
      const auto group = rank.join({}, "g" + std::to_string(round));
      std::vector<float> data(100000, 1);
      group->all_reduce(data.data(), data.size(), Element::f32, Reduction::sum);
      require(data[99999] == 2, "sum");
    }
  }));
}

TEST_CASE("calls that differ throw on all ranks and name both") {
  struct Difference {
    const char* expected;
    std::function<void(SharedGroup&, int)> call;
  };
  std::vector<float> data(100000);
  const std::vector<Difference> differences{
      {"rank 0 all_reduce #2 (sum of 10 f32), rank 1 all_reduce #2 (sum of 11 f32)",
       [&](SharedGroup& group, int rank) {
         group.all_reduce(data.data(), rank == 1 ? 11 : 10, Element::f32, Reduction::sum);
       }},
      {"rank 0 all_reduce #2 (sum of 100000 f32), rank 1 barrier #2",
       [&](SharedGroup& group, int rank) {
         if (rank == 1) return group.barrier();
         group.all_reduce(data.data(), data.size(), Element::f32, Reduction::sum);
       }},
      {"rank 0 all_reduce #2 (sum of 10 f32), rank 1 all_reduce #2 (max of 10 f32)",
       [&](SharedGroup& group, int rank) {
         group.all_reduce(data.data(), 10, Element::f32,
                          rank == 1 ? Reduction::max : Reduction::sum);
       }},
      {"rank 0 all_reduce #2 (sum of 10 f32), rank 1 all_reduce #2 (sum of 10 i32)",
       [&](SharedGroup& group, int rank) {
         group.all_reduce(data.data(), 10, rank == 1 ? Element::i32 : Element::f32, Reduction::sum);
       }},
      {"rank 0 broadcast #2 (100000 u8 from rank 0), rank 1 broadcast #2 (100000 u8 from rank 1)",
       [&](SharedGroup& group, int rank) { group.broadcast(data.data(), 100000, rank); }},
  };
  for (const Difference& difference : differences) {
    const auto ranks =
        fork_ranks(2, [&](const Rank& rank) { difference.call(*rank.join(), rank.rank); });
    for (const test::Ended& rank : ranks) {
      CHECK(rank.code == 1);
      CHECK(contains(rank.error, "call different collectives"));
      CHECK(contains(rank.error, difference.expected));
    }
  }
}

TEST_CASE("a rank that does not come is named with its last call and step") {
  const auto ranks = fork_ranks(3, [](const Rank& rank) {
    SharedGroup::Options options;
    options.timeout = std::chrono::seconds(10);
    options.name = "gradients";
    const auto group = rank.join(options);
    group->set_step(40 + rank.rank);
    float one = 1;
    group->broadcast(&one, 4, 0, Element::f32);
    if (rank.rank == 2) {
      // Until the others have given up: this rank is told so as well.
      while (!group->broken()) ::usleep(1000);
    }
    group->all_reduce(&one, 1, Element::f32, Reduction::sum);
  });
  int timed_out = 0;
  for (const std::size_t rank : {0U, 1U}) {
    CHECK(ranks[rank].code == 1);
    const std::string& error = ranks[rank].error;
    CHECK(contains(error, "all_reduce #3 (sum of 1 f32)"));
    if (contains(error, "of group 'gradients' timed out after 10 s on rank")) ++timed_out;
    CHECK(contains(error, "rank 2 has not come: its last call was broadcast #2"));
    CHECK(contains(error, "it is at step 42"));
  }
  CHECK(timed_out >= 1);
  CHECK(contains(ranks[2].error, "gave up while this rank was in all_reduce #3"));
}

TEST_CASE("ranks that cannot share memory all learn the same reason") {
  succeed(fork_ranks(3, [](const Rank& rank) {
    KeyValue keys = rank.table.keys("g/");
    const KeyValue real = keys;
    keys.set = [&](const std::string& key, const std::string& text) {
      real.set(key, key == "host/2" ? "another machine" : text);
    };
    std::string problem;
    require(SharedGroup::join(keys, rank.rank, rank.size, {}, &problem) == nullptr, "a group");
    require(contains(problem, "rank 0 and rank 2 are not on one host"), problem);
  }));
  succeed(fork_ranks(3, [](const Rank& rank) {
    KeyValue keys = rank.table.keys("g/");
    const KeyValue real = keys;
    keys.get = [&](const std::string& key) {
      // As if the socket's name were not found here: another namespace.
      std::string text = real.get(key);
      if (rank.rank == 2 && key == "meet") text.replace(0, 4, "0078");
      return text;
    };
    std::string problem;
    require(SharedGroup::join(keys, rank.rank, rank.size, {}, &problem) == nullptr, "a group");
    require(contains(problem, "rank 2: cannot reach rank 0's unix socket"), problem);
  }));
}

TEST_CASE("ranks that take what they are handed late are no problem") {
  succeed(fork_ranks(8, [](const Rank& rank) {
    limit_files(64);
    KeyValue keys = rank.table.keys("g/");
    const KeyValue real = keys;
    if (rank.rank == 0) keys.set("pid", std::to_string(::getpid()));
    keys.get = [&](const std::string& key) {
      const std::string text = real.get(key);
      // Rank 0 has sent all that it sends without waiting for somebody.
      if (rank.rank != 0 && key == "all") wait_until_asleep(real.get("pid"));
      return text;
    };
    std::string problem;
    const auto group = SharedGroup::join(keys, rank.rank, rank.size, {}, &problem);
    require(group != nullptr, problem);
    group->barrier();
  }));
}

TEST_CASE("what rank 0 cannot hand over is said to all ranks") {
  succeed(fork_ranks(4, [](const Rank& rank) {
    limit_files(64);
    int ends[2];
    require(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "a pair of sockets");
    KeyValue keys = rank.table.keys("g/");
    const KeyValue real = keys;
    keys.set = [&](const std::string& key, const std::string& text) {
      if (key == "all") send_many(ends[0], 70);  // more than the kernel lets be on their way
      real.set(key, text);
    };
    std::string problem;
    require(SharedGroup::join(keys, rank.rank, rank.size, {}, &problem) == nullptr, "a group");
    require(contains(problem, "rank 0: cannot hand memory to rank 1: Too many references"),
            problem);
  }));
}

TEST_CASE("nothing is left behind: the group's memory has no name") {
  const auto ranks = fork_ranks(2, [](const Rank& rank) {
    const auto group = rank.join();
    const std::string maps = read_text("/proc/self/maps", 1 << 20);
    require(contains(maps, "/memfd:dtrain-group (deleted)"), maps);
    require(!contains(maps, "/dev/shm"), maps);
  });
  succeed(ranks);
}
