#include "tests/trainer/comm/processes.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "trainer/core/files.hpp"

namespace dtrain::train::test {

struct SharedTable::Memory {
  struct Entry {
    char key[128];
    char value[512];
  };
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int count;
  Entry entries[256];

  const Entry* find(const std::string& key) const {
    for (int i = 0; i < count; ++i) {
      if (key == entries[i].key) return &entries[i];
    }
    return nullptr;
  }
};

SharedTable::SharedTable()
    : memory_(static_cast<Memory*>(::mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  pthread_mutexattr_t mutex;
  pthread_mutexattr_init(&mutex);
  pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&memory_->mutex, &mutex);
  pthread_condattr_t condition;
  pthread_condattr_init(&condition);
  pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
  pthread_cond_init(&memory_->changed, &condition);
}

SharedTable::~SharedTable() {
  ::munmap(memory_, sizeof(Memory));
}

comm::KeyValue SharedTable::keys(const std::string& prefix) {
  Memory* const memory = memory_;
  comm::KeyValue keys;
  keys.set = [memory, prefix](const std::string& key, const std::string& value) {
    pthread_mutex_lock(&memory->mutex);
    Memory::Entry& entry = memory->entries[memory->count++];
    std::snprintf(entry.key, sizeof entry.key, "%s%s", prefix.c_str(), key.c_str());
    std::snprintf(entry.value, sizeof entry.value, "%s", value.c_str());
    pthread_cond_broadcast(&memory->changed);
    pthread_mutex_unlock(&memory->mutex);
  };
  keys.get = [memory, prefix](const std::string& key) {
    timespec deadline{};
    ::clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 10;
    pthread_mutex_lock(&memory->mutex);
    const Memory::Entry* entry = nullptr;
    while ((entry = memory->find(prefix + key)) == nullptr) {
      if (pthread_cond_timedwait(&memory->changed, &memory->mutex, &deadline) != 0) break;
    }
    const std::string value = entry == nullptr ? "" : entry->value;
    pthread_mutex_unlock(&memory->mutex);
    if (entry == nullptr) throw std::runtime_error("nobody has set " + prefix + key);
    return value;
  };
  keys.has = [memory, prefix](const std::string& key) {
    pthread_mutex_lock(&memory->mutex);
    const bool found = memory->find(prefix + key) != nullptr;
    pthread_mutex_unlock(&memory->mutex);
    return found;
  };
  return keys;
}

std::unique_ptr<comm::SharedGroup> Rank::join(const comm::SharedGroup::Options& options,
                                              const std::string& name) const {
  std::string problem;
  auto group = comm::SharedGroup::join(table.keys(name + "/"), rank, size, options, &problem);
  if (!group) throw std::runtime_error("no group: " + problem);
  return group;
}

std::vector<Ended> fork_ranks(int ranks, const std::function<void(const Rank&)>& body) {
  SharedTable table;
  std::vector<pid_t> pids;
  std::vector<FileDescriptor> errors;
  for (int rank = 0; rank < ranks; ++rank) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("cannot make a pipe");
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("cannot fork");
    if (pid == 0) {
      ::close(ends[0]);
      ::alarm(60);  // a test that hangs ends
      try {
        body(Rank{rank, ranks, table});
      } catch (const std::exception& error) {
        static_cast<void>(!::write(ends[1], error.what(), std::strlen(error.what())));
        ::_exit(1);
      }
      ::_exit(0);
    }
    ::close(ends[1]);
    pids.push_back(pid);
    errors.emplace_back(ends[0]);
  }
  std::vector<Ended> all;
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    Ended ended;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(errors[rank].get(), buffer, sizeof buffer)) > 0;) {
      ended.error.append(buffer, static_cast<std::size_t>(got));
    }
    int status = 0;
    ::waitpid(pids[rank], &status, 0);
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    all.push_back(ended);
  }
  return all;
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

}  // namespace dtrain::train::test
