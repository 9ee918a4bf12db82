// Preloaded: moves CLOCK_REALTIME for one program by the seconds that a file holds (8 bytes, in this machine's order),
// each time that the program asks. Other clocks stay as they are, as when an administrator or NTP steps the time.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t* offset_s;
static int (*real_clock_gettime)(clockid_t, struct timespec*);

__attribute__((constructor)) static void start(void) {
  const char* path = getenv("MC_CLOCK_OFFSET");
  const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void* at = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) offset_s = at;
  close(fd);
}

int clock_gettime(clockid_t clock, struct timespec* out) {
  if (!real_clock_gettime) real_clock_gettime = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int rc = real_clock_gettime(clock, out);
  if (rc == 0 && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += *offset_s;
  return rc;
}

int gettimeofday(struct timeval* restrict out, void* restrict zone) {
  (void)zone;
  struct timespec now;
  const int rc = clock_gettime(CLOCK_REALTIME, &now);
  if (rc == 0 && out) out->tv_sec = now.tv_sec, out->tv_usec = now.tv_nsec / 1000;
  return rc;
}

time_t time(time_t* out) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
