/* A program that finds its peers by PMIx, as MPI libraries do.
 *
 *   pmix_peers            says what its neighbour has put there for all, and ends
 *   pmix_peers fail RANK  that rank then ends with 7 and without a word; the others wait for SIGTERM
 *   pmix_peers wait       all wait for SIGTERM, and meet once more before they end
 */
#include <pmix.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile sig_atomic_t told;

static void on_signal(int number) {
  (void)number;
  told = 1;
}

static void must(pmix_status_t status, const char* what) {
  if (status == PMIX_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", what, PMIx_Error_string(status));
  exit(3);
}

static void fence(void) {
  pmix_info_t info;
  bool yes = true;
  PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
  must(PMIx_Fence(NULL, 0, &info, 1), "PMIx_Fence");
}

static unsigned get(const pmix_proc_t* from, const char* key) {
  pmix_value_t* value = NULL;
  must(PMIx_Get(from, key, NULL, 0, &value), key);
  const unsigned number = value->data.uint32;
  PMIX_VALUE_RELEASE(value);
  return number;
}

int main(int argc, char** argv) {
  signal(SIGTERM, on_signal);
  setvbuf(stdout, NULL, _IOLBF, 0);
  pmix_proc_t me;
  must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
  pmix_proc_t peer = me;
  peer.rank = PMIX_RANK_WILDCARD;
  const unsigned size = get(&peer, PMIX_JOB_SIZE);
  pmix_value_t mine;
  mine.type = PMIX_UINT32;
  mine.data.uint32 = 100 + me.rank;
  must(PMIx_Put(PMIX_GLOBAL, "peers.number", &mine), "PMIx_Put");
  must(PMIx_Commit(), "PMIx_Commit");
  fence();
  peer.rank = (me.rank + 1) % size;
  printf("rank %u of %u: %u\n", me.rank, size, get(&peer, "peers.number"));
  const int fails = argc > 2 && strcmp(argv[1], "fail") == 0;
  const int waits = argc > 1 && strcmp(argv[1], "wait") == 0;
  if (fails && me.rank == (unsigned)atoi(argv[2])) _Exit(7);
  if (fails || waits) {
    const struct timespec pause = {0, 10000000};
    while (!told) nanosleep(&pause, NULL);
    if (waits) fence();
    printf("rank %u was told\n", me.rank);
    if (fails) return 0; /* its server may be gone */
  }
  must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
  return 0;
}
