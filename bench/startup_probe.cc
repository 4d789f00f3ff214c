// A program that does not use LMDB.  Exits with 0 if it has one thread.
#include <dirent.h>

int main() {
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return 2;
  int threads = 0;
  while (const dirent* entry = readdir(tasks)) threads += entry->d_name[0] != '.' ? 1 : 0;
  closedir(tasks);
  return threads == 1 ? 0 : 1;
}
