// A program that has nothing to do with LMDB.  Says what a preloaded library must not change.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

static int entries(const char* path) {
  int n = 0;
  DIR* const dir = opendir(path);
  if (!dir) return -1;
  while (readdir(dir)) ++n;
  closedir(dir);
  return n;
}

static void at_exit(void) {
  printf("at exit: threads %d, descriptors %d\n", entries("/proc/self/task"), entries("/proc/self/fd"));
}

int main(void) {
  if (atexit(at_exit) != 0) return 1;
  printf("threads %d, descriptors %d\n", entries("/proc/self/task"), entries("/proc/self/fd"));
  return 0;
}
