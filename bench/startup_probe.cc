// A program that has nothing to do with LMDB.  Exits 0 if it runs in one thread, as it was written.
#include <dirent.h>

int main() {
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return 2;
  int threads = 0;
  while (const dirent* entry = readdir(tasks)) threads += entry->d_name[0] != '.' ? 1 : 0;
  closedir(tasks);
  return threads == 1 ? 0 : 1;
}
