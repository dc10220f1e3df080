#pragma once

#include <doctest/doctest.h>

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>

namespace dtrain::testing {

// For a body of with_own_mounts(), whose CHECKs nobody would count.
inline void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}

// Runs `body` in a child that may mount what no other process sees, and checks that it throws
// nothing. Where the kernel allows no such child it is not run.
template <typename Body>
void with_own_mounts(const Body& body) {
  constexpr int kNotPossible = 77;
  const auto user = ::geteuid();
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS | (user == 0 ? 0 : CLONE_NEWUSER)) != 0) ::_exit(kNotPossible);
    if (user != 0) std::ofstream("/proc/self/uid_map") << "0 " << user << " 1\n" << std::flush;
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(kNotPossible);
    try {
      body();
      ::_exit(0);
    } catch (const std::exception& error) {
      std::cerr << "wrong: " << error.what() << std::endl;
    } catch (...) {  // doctest's own has said it
    }
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPossible) {
    MESSAGE("not seen: nothing may be mounted here");
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace dtrain::testing
